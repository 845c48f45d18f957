/* Lanes: order, waiting, failures, and that a tensor knows the job that works on it. */
#include "check.h"
#include "core/job.h"
#include "transport/flag.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct counted {
    mx_job job;
    int number;
    int fails;
} counted;

static int order[4096], n_run; /* by the lane's thread only, read after waiting */
static int n_done;

static mx_status run(mx_job *job)
{
    counted *c = (counted *)job;
    order[n_run++] = c->number;
    return c->fails ? mx_fail(MX_ERR_VALUE, "job %d fails", c->number) : MX_OK;
}

static void done(mx_job *job)
{
    n_done++;
    free(job);
}

static counted *new_job(mx_lane *lane, int number, int fails)
{
    counted *c = calloc(1, sizeof *c);
    c->job.run = run;
    c->job.done = done;
    c->job.lane = lane;
    c->number = number;
    c->fails = fails;
    return c;
}

static void test_order(mx_lane *lane)
{
    n_run = n_done = 0;
    counted *last = NULL;
    for (int i = 0; i < 1000; i++) {
        last = new_job(lane, i, 0);
        CHECK(mx_lane_submit(&last->job) == MX_OK, "submit");
    }
    CHECK(mx_job_wait(&last->job) == MX_OK, "wait");
    CHECK(n_run == 1000 && n_done == 1000, "all have run and ended");
    for (int i = 0; i < 1000; i++)
        CHECK(order[i] == i, "in the order given");
}

/* A held job is given to its lane by who waits for it; one that is done at once comes after what is queued. */
static void test_held_and_blocking(mx_lane *lane)
{
    n_run = n_done = 0;
    counted *held = new_job(lane, 0, 0);
    CHECK(mx_job_wait(&held->job) == MX_OK, "waiting for a held job gives it away");
    for (int i = 1; i <= 10; i++)
        CHECK(mx_lane_submit(&new_job(lane, i, 0)->job) == MX_OK, "submit");
    CHECK(mx_lane_do(&new_job(lane, 11, 0)->job) == MX_OK, "do");
    CHECK(n_run == 12 && order[11] == 11, "after all that were queued");
    CHECK(mx_lane_do(&new_job(lane, 12, 0)->job) == MX_OK, "do on an idle lane");
    CHECK(n_done == 13, "ended");
}

static void test_failures(mx_lane *lane)
{
    counted *good = NULL;
    CHECK(mx_lane_submit(&new_job(lane, 1, 1)->job) == MX_OK, "submit");
    good = new_job(lane, 2, 0);
    if (mx_lane_submit(&good->job) != MX_OK) { /* if job 1 has already run */
        CHECK(strstr(mx_message(), "job 1 fails"), "submit may tell it: %s", mx_message());
        free(good);
    }
    (void)mx_lane_drain(lane);
    CHECK(mx_lane_do(&new_job(lane, 3, 1)->job) == MX_ERR_VALUE, "a blocking one fails");
    CHECK(strcmp(mx_message(), "job 3 fails") == 0, "with its message");
    CHECK(mx_lane_submit(&new_job(lane, 4, 1)->job) == MX_OK, "submit");
    CHECK(mx_lane_drain(lane) == MX_ERR_VALUE && strcmp(mx_message(), "job 4 fails") == 0, "draining tells it");
    CHECK(mx_lane_drain(lane) == MX_OK, "once");
}

static void test_tensor_waits(mx_lane *lane)
{
    const mx_shape shape = {.n_dims = 1, .size = {4}};
    mx_tensor *t = NULL;
    CHECK(mx_tensor_new(MX_F32, &shape, &t) == MX_OK, "tensor");
    CHECK(mx_tensor_wait(t, true) == MX_OK, "nothing to wait for");
    counted *writer = new_job(lane, 7, 1);
    t->storage->writer = &writer->job;
    CHECK(mx_lane_submit(&writer->job) == MX_OK, "submit");
    CHECK(mx_tensor_wait(t, false) == MX_ERR_VALUE, "who reads gets the job's failure");
    t->storage->writer = NULL;
    mx_release(t);
}

/* Two threads that wait for each other's counter in turn, sleeping now and then. */
typedef struct pair {
    mx_flag flags[2];
    int sum;
} pair;

static void *answer(void *argument)
{
    pair *p = argument;
    for (uint32_t i = 1; i <= 2000; i++) {
        while (!mx_flag_wait(&p->flags[0], i, 1))
            continue;
        p->sum += (int)i; /* between the two counters only one of us may touch it */
        mx_flag_set(&p->flags[1], i);
    }
    return NULL;
}

static void test_flags(void)
{
    static pair p;
    pthread_t thread;
    mx_flag_set_spin_us(1);
    CHECK(pthread_create(&thread, NULL, answer, &p) == 0, "thread");
    for (uint32_t i = 1; i <= 2000; i++) {
        p.sum += 1;
        mx_flag_set(&p.flags[0], i);
        while (!mx_flag_wait(&p.flags[1], i, 1))
            continue;
    }
    pthread_join(thread, NULL);
    CHECK(p.sum == 2000 + 2000 * 2001 / 2, "each saw what the other wrote");
    CHECK(!mx_flag_wait(&p.flags[1], 2001, 0.01), "a counter that does not come");
    p.flags[0].value = UINT32_MAX;
    CHECK(mx_flag_reached(&p.flags[0], UINT32_MAX - 5) && !mx_flag_reached(&p.flags[0], 3), "counters wrap around");
}

int main(void)
{
    mx_lane *lane = NULL;
    CHECK(mx_lane_new("test", &lane) == MX_OK, "lane");
    test_order(lane);
    test_held_and_blocking(lane);
    test_failures(lane);
    test_tensor_waits(lane);
    test_flags();
    return check_done();
}
