#define _GNU_SOURCE
#include "core/job.h"

#include "core/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct mx_lane {
    char name[16]; /* name of the thread in system tools */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t given, finished;
    mx_job *first, *last; /* submitted and not yet ended by the script's thread, oldest first */
    mx_job *next;         /* the first of them that has not run; NULL: none */
    mx_status failed;     /* failure of a job that ended without being waited for */
    char message[1024];
    mx_lane_times times;
    mx_lane *before; /* the lane created before this one; lanes live as long as the process */
};

mx_job_hooks mx_job_observer;

static mx_lane *lanes; /* the last lane created */

const char *mx_lane_name(const mx_lane *lane) { return lane->name; }

mx_status mx_lane_new(const char *name, mx_lane **out)
{
    mx_lane *lane = calloc(1, sizeof *lane);
    *out = lane;
    if (!lane)
        return mx_fail(MX_ERR_MEMORY, "no memory for a thread's queue");
    snprintf(lane->name, sizeof lane->name, "%s", name);
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->given, NULL);
    pthread_cond_init(&lane->finished, NULL);
    lane->before = lanes;
    lanes = lane;
    return MX_OK;
}

void mx_lane_free(mx_lane *lane)
{
    if (!lane)
        return;
    mx_lane **link = &lanes;
    while (*link != lane)
        link = &(*link)->before;
    *link = lane->before;
    pthread_mutex_destroy(&lane->lock);
    pthread_cond_destroy(&lane->given);
    pthread_cond_destroy(&lane->finished);
    free(lane);
}

static void run(mx_job *job)
{
    job->status = job->run(job);
    if (job->status != MX_OK)
        snprintf(job->message, sizeof job->message, "%s", mx_message());
}

static void run_timed(mx_job *job)
{
    job->start_s = mx_now();
    run(job);
    job->end_s = mx_now();
}

static void append(mx_lane *lane, mx_job *job)
{
    job->next = NULL;
    if (lane->last)
        lane->last->next = job;
    else
        lane->first = job;
    lane->last = job;
}

/* ---- jobs on threads ---- */

static void *serve(void *argument)
{
    mx_lane *lane = argument;
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (!lane->next)
            pthread_cond_wait(&lane->given, &lane->lock);
        mx_job *job = lane->next;
        pthread_mutex_unlock(&lane->lock);
        run_timed(job);
        pthread_mutex_lock(&lane->lock);
        lane->next = job->next;
        atomic_store(&job->state, MX_JOB_FINISHED);
        pthread_cond_broadcast(&lane->finished);
    }
    return NULL;
}

/* Starts the thread with signals blocked: the script's thread must get them, so that an interrupt reaches Lua. */
static mx_status start(mx_lane *lane)
{
    if (lane->has_thread)
        return MX_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&lane->thread, NULL, serve, lane);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return mx_fail(MX_ERR_MEMORY, "no thread for %s could be started", lane->name);
    pthread_setname_np(lane->thread, lane->name);
    lane->has_thread = true;
    return MX_OK;
}

mx_status mx_thread_submit(mx_job *job)
{
    mx_lane *lane = job->lane;
    MX_TRY(start(lane));
    atomic_store(&job->state, MX_JOB_QUEUED);
    pthread_mutex_lock(&lane->lock);
    append(lane, job);
    if (!lane->next)
        lane->next = job;
    pthread_cond_signal(&lane->given);
    pthread_mutex_unlock(&lane->lock);
    return MX_OK;
}

bool mx_thread_is_done(const mx_job *job) { return atomic_load(&job->state) == MX_JOB_FINISHED; }

void mx_thread_wait(const mx_job *job)
{
    mx_lane *lane = job->lane;
    pthread_mutex_lock(&lane->lock);
    while (atomic_load(&job->state) != MX_JOB_FINISHED)
        pthread_cond_wait(&lane->finished, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
}

mx_status mx_job_submit_here(mx_job *job)
{
    run(job);
    atomic_store(&job->state, MX_JOB_FINISHED);
    append(job->lane, job);
    return MX_OK;
}

/* ---- on the script's thread ---- */

static bool is_done(const mx_job *job) { return job->device->is_done(job); }

/* Counts a job that has run, and releases it. */
static void finish(mx_job *job)
{
    job->lane->times.busy_s += job->end_s - job->start_s;
    job->lane->times.jobs++;
    if (mx_job_observer.ended)
        mx_job_observer.ended(job);
    job->done(job);
}

static void count_wait(const mx_job *job, double start_s, double end_s)
{
    job->lane->times.exposed_s += end_s - start_s;
    if (job->exposed_s)
        *job->exposed_s += end_s - start_s;
    if (mx_job_observer.waited)
        mx_job_observer.waited(job, start_s, end_s);
}

/* Removes the job after `before` (NULL: the oldest) from the list and releases it. */
static void end_after(mx_lane *lane, mx_job *before)
{
    pthread_mutex_lock(&lane->lock);
    mx_job *job = before ? before->next : lane->first;
    if (before)
        before->next = job->next;
    else
        lane->first = job->next;
    if (lane->last == job)
        lane->last = before;
    pthread_mutex_unlock(&lane->lock);
    if (job->status != MX_OK && lane->failed == MX_OK) {
        lane->failed = job->status;
        snprintf(lane->message, sizeof lane->message, "%s", job->message);
    }
    finish(job);
}

static mx_status report(mx_lane *lane)
{
    mx_status status = lane->failed;
    lane->failed = MX_OK;
    return status == MX_OK ? MX_OK : mx_fail(status, "%s", lane->message);
}

/* Jobs on a thread finish in order. On other devices a later job may finish first. */
mx_status mx_lane_reap(mx_lane *lane)
{
    mx_job *before = NULL;
    for (mx_job *job = lane->first, *next; job; job = next) {
        next = job->next;
        if (is_done(job))
            end_after(lane, before);
        else if (job->device->has_threads)
            break;
        else
            before = job;
    }
    return report(lane);
}

mx_status mx_lanes_reap(void)
{
    for (mx_lane *lane = lanes; lane; lane = lane->before)
        MX_TRY(mx_lane_reap(lane));
    return MX_OK;
}

mx_status mx_lane_submit(mx_job *job)
{
    MX_TRY(mx_lane_reap(job->lane));
    job->device = mx_device_current;
    return job->device->submit(job);
}

static void wait_for(const mx_job *job)
{
    if (is_done(job))
        return;
    mx_device *device = job->device;
    double before = device->now(device);
    device->wait(job);
    count_wait(job, before, device->now(device));
}

mx_status mx_job_wait(mx_job *job)
{
    mx_lane *lane = job->lane;
    if (atomic_load(&job->state) == MX_JOB_HELD)
        MX_TRY(mx_lane_submit(job));
    wait_for(job);
    return mx_lane_reap(lane);
}

mx_status mx_lane_drain(mx_lane *lane)
{
    mx_status status = MX_OK;
    while (lane->first) {
        wait_for(lane->first);
        mx_status first = mx_lane_reap(lane);
        status = status == MX_OK ? first : status;
    }
    return status == MX_OK ? report(lane) : status;
}

mx_status mx_lane_do(mx_job *job)
{
    mx_lane *lane = job->lane;
    mx_status status = mx_lane_reap(lane);
    if (status != MX_OK) {
        job->done(job);
        return status;
    }
    if (lane->first || !mx_device_current->has_threads) {
        status = mx_lane_submit(job);
        if (status != MX_OK)
            job->done(job);
        return status == MX_OK ? mx_job_wait(job) : status;
    }
    job->device = mx_device_current;
    atomic_store(&job->state, MX_JOB_QUEUED);
    run_timed(job);
    count_wait(job, job->start_s, job->end_s);
    status = job->status;
    if (status != MX_OK)
        mx_fail(status, "%s", job->message);
    finish(job);
    return status;
}

mx_status mx_tensor_wait(const mx_tensor *t, bool for_writing)
{
    mx_storage *storage = t->storage;
    if (!storage)
        return MX_OK;
    if (storage->writer)
        MX_TRY(mx_job_wait(storage->writer));
    if (for_writing && storage->reader)
        MX_TRY(mx_job_wait(storage->reader));
    if (for_writing)
        mx_storage_change(storage, NULL);
    return MX_OK;
}

mx_status mx_tensor_wait_others(const mx_tensor *t, const mx_lane *own)
{
    mx_storage *storage = t ? t->storage : NULL;
    if (storage && storage->writer && storage->writer->lane != own)
        MX_TRY(mx_job_wait(storage->writer));
    if (storage && storage->reader && storage->reader->lane != own)
        MX_TRY(mx_job_wait(storage->reader));
    return MX_OK;
}

mx_lane_times mx_lane_get_times(mx_lane *lane, bool reset)
{
    mx_lane_times times = lane->times;
    if (reset)
        lane->times = (mx_lane_times){0};
    return times;
}
