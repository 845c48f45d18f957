#include "io/recorder.h"

#include "core/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_recording recording;
static mx_event *events;
static int64_t room;
static bool is_on, is_short_of_memory;
static mx_device *device; /* that was current when it began */

/* ---- texts ---- */

static void add_text(char *text, size_t size, const mx_tensor *t)
{
    size_t used = strlen(text);
    if (t && used < size)
        snprintf(text + used, size - used, "%s%s %s", used ? ", " : "", mx_dtype_name(t->dtype),
                 mx_shape_text(&t->shape));
}

static const char *describe(mx_tensor *const *tensors, int n)
{
    char text[512] = "";
    for (int i = 0; i < n; i++)
        add_text(text, sizeof text, tensors[i]);
    return mx_intern(text);
}

static const char *intern(const char *text) { return text ? mx_intern(text) : NULL; }

/* ---- events ---- */

static bool grow(void)
{
    if (recording.n < room)
        return true;
    int64_t more = room ? 2 * room : 4096;
    mx_event *grown = realloc(events, (size_t)more * sizeof *grown);
    if (!grown)
        return false;
    events = grown;
    room = more;
    return true;
}

/* Adds an event. If it began before the recording, only the part inside the recording is kept. */
static void add(mx_event event)
{
    if (mx_device_current != device || event.end_s < recording.start_s)
        return;
    if (!grow()) {
        is_short_of_memory = true;
        return;
    }
    event.start_s = event.start_s < recording.start_s ? recording.start_s : event.start_s;
    events[recording.n++] = event;
}

static void on_call(const mx_call *call, double start_s, double end_s)
{
    mx_cost cost = call->op->cost(call);
    bool in_place = call->n_out == 0 && (call->op->flags & MX_OP_MUTATES);
    add((mx_event){.kind = MX_EVENT_OPERATION,
                   .name = call->op->name,
                   .inputs = describe(call->in, call->n_in),
                   .outputs = in_place ? describe(call->in, 1) : describe(call->out, call->n_out),
                   .start_s = start_s,
                   .end_s = end_s,
                   .work = cost.work,
                   .collective = call->op->flags & MX_OP_COLLECTIVE,
                   .flops = cost.flops,
                   .bytes = cost.bytes_read + cost.bytes_written,
                   .memory_bytes = device->memory(device).in_use_bytes});
}

static mx_event event_of(const mx_job *job, mx_event_kind kind)
{
    mx_job_about about = job->describe ? job->describe(job) : (mx_job_about){0};
    return (mx_event){.kind = kind,
                      .name = about.kind ? mx_intern(about.kind) : mx_intern(mx_lane_name(job->lane)),
                      .over = intern(about.over),
                      .dtype = intern(about.dtype),
                      .where = intern(about.where),
                      .bytes = about.bytes,
                      .count = about.count,
                      .tensors = about.tensors};
}

static void on_ended(const mx_job *job)
{
    mx_event event = event_of(job, MX_EVENT_JOB);
    double start_s = job->start_s;
    if (!job->part[0].track) {
        event.track = mx_intern(mx_lane_name(job->lane));
        event.start_s = start_s;
        event.end_s = job->end_s;
        add(event);
    }
    for (int i = 0; i < 2 && job->part[i].track; i++) {
        event.track = mx_intern(job->part[i].track);
        event.bytes = job->part[i].bytes;
        event.start_s = start_s;
        event.end_s = start_s += job->part[i].seconds;
        add(event);
    }
}

static void on_copied(const mx_job *job, double start_s, double end_s)
{
    mx_event event = event_of(job, MX_EVENT_COPY);
    event.track = mx_intern("memory");
    event.start_s = start_s;
    event.end_s = end_s;
    add(event);
}

/* If a job has two parts, the wait is attributed to the longer one. */
static void on_waited(const mx_job *job, double start_s, double end_s)
{
    mx_event event = event_of(job, MX_EVENT_WAIT);
    const mx_job_part *part = &job->part[job->part[1].seconds > job->part[0].seconds];
    event.track = mx_intern(part->track ? part->track : mx_lane_name(job->lane));
    event.start_s = start_s;
    event.end_s = end_s;
    add(event);
}

void mx_recorder_span(const char *name, double start_s, double end_s)
{
    if (is_on)
        add((mx_event){.kind = MX_EVENT_SPAN, .name = mx_intern(name), .start_s = start_s, .end_s = end_s});
}

/* ---- start and stop ---- */

bool mx_recorder_is_on(void) { return is_on; }

mx_status mx_recorder_start(void)
{
    if (is_on)
        return mx_fail(MX_ERR_STATE, "a trace is being recorded already; stop it first");
    MX_TRY(mx_lanes_reap());
    free(events);
    events = NULL;
    room = 0;
    is_on = true;
    is_short_of_memory = false;
    if (device)
        mx_device_release(device);
    device = mx_device_retain(mx_device_current);
    recording = (mx_recording){
        .start_s = mx_clock(), .simulated = !device->has_values, .memory_bytes = device->memory(device).in_use_bytes};
    mx_apply_observe(on_call, true);
    mx_job_observer = (mx_job_hooks){.ended = on_ended, .waited = on_waited, .copied = on_copied};
    return MX_OK;
}

void mx_recorder_stop(void)
{
    if (!is_on)
        return;
    recording.end_s = mx_clock();
    mx_apply_observe(on_call, false);
    mx_job_observer = (mx_job_hooks){0};
    is_on = false;
}

mx_status mx_recorder_get(mx_recording *out)
{
    if (is_on) {
        MX_TRY(mx_lanes_reap());
        recording.end_s = mx_clock();
    }
    recording.events = events;
    *out = recording;
    if (is_short_of_memory)
        return mx_fail(MX_ERR_MEMORY, "no memory to record more than %lld events; record fewer steps",
                       (long long)recording.n);
    if (is_on && mx_device_current != device)
        return mx_fail(MX_ERR_STATE, "a simulation was started or stopped while a trace was recorded; start the trace "
                                     "after that");
    return MX_OK;
}
