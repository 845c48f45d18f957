#include "data/feed.h"

#include "core/clock.h"
#include "core/job.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The memory of one batch: in use by the caller, in flight, or free. */
typedef struct slot {
    mx_job job; /* must be first: the lane returns this pointer */
    mx_feed *feed;
    mx_samples samples;
    void *memory; /* holds all arrays */
    int64_t first;
    bool given, ended; /* given to the lane; finished by it */
    mx_status status;
    char message[1024];
} slot;

struct mx_feed {
    mx_sampler *sampler;
    int64_t rows, length, stride;
    int count; /* of slots: one more than are prefetched */
    slot *slots;
    int head, ahead; /* the `ahead` slots from head on (wrapping around) are given to the lane */
    double waited_s;
};

static mx_lane *lane; /* shared by all feeds */

/* Reads a batch on the lane's thread. A failure stays in the slot, so that only the request for this batch returns it.
 */
static mx_status fill(mx_job *job)
{
    slot *s = (slot *)job;
    s->status = mx_sampler_fill(s->feed->sampler, s->first, s->feed->rows, &s->samples);
    if (s->status != MX_OK)
        snprintf(s->message, sizeof s->message, "%s", mx_message());
    return MX_OK;
}

static void end(mx_job *job) { ((slot *)job)->ended = true; }

static mx_status make_slot(mx_feed *feed, slot *s)
{
    size_t count = (size_t)(feed->rows * feed->length);
    s->feed = feed;
    s->memory = malloc(count * (4 * sizeof(int32_t) + 1));
    if (!s->memory)
        return mx_fail(MX_ERR_MEMORY, "out of memory for batches of %lld sequences of %lld tokens",
                       (long long)feed->rows, (long long)feed->length);
    int32_t *at = s->memory;
    s->samples = (mx_samples){at, at + count, at + 2 * count, at + 3 * count, (uint8_t *)(at + 4 * count)};
    return MX_OK;
}

static mx_status make_slots(mx_feed *feed)
{
    if (feed->rows < 1 || feed->length < 1 || feed->stride < 0 || (double)feed->rows * (double)feed->length > 0x1p40)
        return mx_fail(MX_ERR_VALUE, "batches of %lld sequences of %lld tokens", (long long)feed->rows,
                       (long long)feed->length);
    feed->slots = calloc((size_t)feed->count, sizeof *feed->slots);
    if (!feed->slots)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %d batches", feed->count);
    for (int i = 0; i < feed->count; i++)
        MX_TRY(make_slot(feed, &feed->slots[i]));
    return lane || feed->count == 1 ? MX_OK : mx_lane_new("input", &lane);
}

mx_status mx_feed_new(mx_sampler *sampler, int64_t rows, int64_t length, int64_t stride, int depth, mx_feed **out)
{
    *out = NULL;
    mx_feed *feed = calloc(1, sizeof *feed);
    if (!feed) {
        mx_sampler_free(sampler);
        return mx_fail(MX_ERR_MEMORY, "out of memory for batches");
    }
    int ahead = mx_sampler_any_thread(sampler) && depth > 0 ? depth : 0;
    *feed = (mx_feed){.sampler = sampler, .rows = rows, .length = length, .stride = stride, .count = ahead + 1};
    mx_status status = make_slots(feed);
    if (status != MX_OK) {
        mx_feed_free(feed);
        return status;
    }
    *out = feed;
    return MX_OK;
}

static slot *slot_at(mx_feed *feed, int i) { return &feed->slots[(feed->head + i) % feed->count]; }

static mx_status wait_for(slot *s) { return s->ended ? MX_OK : mx_job_wait(&s->job); }

/* Waits for all reads in flight. */
static mx_status settle(mx_feed *feed)
{
    mx_status status = MX_OK;
    for (int i = 0; i < feed->ahead; i++) {
        mx_status waited = wait_for(slot_at(feed, i));
        status = status == MX_OK ? waited : status;
    }
    return status;
}

void mx_feed_free(mx_feed *feed)
{
    if (!feed)
        return;
    settle(feed);
    for (int i = 0; feed->slots && i < feed->count; i++)
        free(feed->slots[i].memory);
    free(feed->slots);
    mx_sampler_free(feed->sampler);
    free(feed);
}

bool mx_feed_has_documents(const mx_feed *feed) { return mx_sampler_has_documents(feed->sampler); }

mx_sampler *mx_feed_sampler(mx_feed *feed)
{
    settle(feed);
    return feed->sampler;
}

static mx_status give(mx_feed *feed, int64_t first)
{
    slot *s = slot_at(feed, feed->ahead);
    s->first = first;
    s->ended = false;
    s->job = (mx_job){.run = fill, .done = end, .lane = lane};
    MX_TRY(mx_lane_submit(&s->job));
    feed->ahead++;
    return MX_OK;
}

/* Reads the batch on the calling thread. */
static mx_status read_now(mx_feed *feed, int64_t first, const mx_samples **out)
{
    slot *s = &feed->slots[0];
    double start = mx_now();
    mx_status status = mx_sampler_fill(feed->sampler, first, feed->rows, &s->samples);
    feed->waited_s += mx_now() - start;
    *out = &s->samples;
    return status;
}

mx_status mx_feed_next(mx_feed *feed, int64_t first, const mx_samples **out)
{
    if (feed->count == 1)
        return read_now(feed, first, out);
    if (feed->ahead > 0 && slot_at(feed, 0)->first != first) {
        MX_TRY(settle(feed));
        feed->ahead = 0;
    }
    if (feed->ahead == 0)
        MX_TRY(give(feed, first));
    double start = mx_now();
    slot *s = slot_at(feed, 0);
    MX_TRY(wait_for(s));
    feed->waited_s += mx_now() - start;
    /* Removes the slot from those in flight. It is free again at the next request. */
    feed->head = (feed->head + 1) % feed->count;
    feed->ahead--;
    if (s->status != MX_OK)
        return mx_fail(s->status, "%s", s->message);
    while (feed->ahead < feed->count - 1)
        MX_TRY(give(feed, first + (feed->ahead + 1) * feed->stride));
    *out = &s->samples;
    return MX_OK;
}

double mx_feed_waited(mx_feed *feed)
{
    double seconds = feed->waited_s;
    feed->waited_s = 0;
    return seconds;
}
