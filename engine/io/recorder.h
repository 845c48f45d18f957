/* The recorder: records every operation and background job of a run, for traces (io/trace.h) and reports.
 *
 * It observes every operation (ops/op.h) and every job of a lane (core/job.h), with the memory in use after each.
 * Events stay in memory, about 100 bytes each, until the next start; nothing is formatted or written during recording.
 * Times are seconds of mx_clock, so simulated runs are recorded like real ones. Script's thread only; not collective.
 */
#ifndef MX_IO_RECORDER_H
#define MX_IO_RECORDER_H

#include "ops/op.h"

/* On the script's thread, earlier kinds may enclose later kinds. */
typedef enum mx_event_kind {
    MX_EVENT_SPAN,      /* a section that the script names, such as a step */
    MX_EVENT_OPERATION, /* a call of mx_apply */
    MX_EVENT_COPY,      /* a simulated chip's memory traffic for a job's data */
    MX_EVENT_WAIT,      /* the script's thread waits for a job, or runs it itself */
    MX_EVENT_JOB,       /* a job, or one of the two parts of a simulated job; not on the script's thread */
} mx_event_kind;

static inline const char *mx_event_kind_name(mx_event_kind kind)
{
    static const char *const names[] = {
        [MX_EVENT_SPAN] = "span", [MX_EVENT_OPERATION] = "operation",
        [MX_EVENT_COPY] = "copy", [MX_EVENT_WAIT] = "wait",
        [MX_EVENT_JOB] = "job",
    };
    return names[kind];
}

/* Texts are interned; NULL if absent. The texts of copies and waits are those of the job. */
typedef struct mx_event {
    mx_event_kind kind;
    const char *name;             /* "matmul", "all_gather", "step 3" */
    const char *track;            /* jobs: the lane or network that it used */
    const char *inputs, *outputs; /* operations: "bf16 (2, 3), f32 (3, 4)" */
    const char *over, *dtype, *where;
    double start_s, end_s;
    mx_work work;
    bool collective;     /* an operation of all ranks of an axis */
    double flops, bytes; /* operations: their cost; jobs: bytes that this rank sends or moves to the host */
    int64_t count;       /* jobs: elements of one part */
    int tensors;
    int64_t memory_bytes; /* memory in use after an operation */
} mx_event;

typedef struct mx_recording {
    const mx_event *events; /* in the order in which they ended */
    int64_t n;
    double start_s, end_s; /* end_s: now, if the recording is still running */
    bool simulated;
    int64_t memory_bytes; /* memory in use at the start */
} mx_recording;

/* Starts a new recording and discards the previous one. MX_ERR_STATE if a recording is running. */
mx_status mx_recorder_start(void);
void mx_recorder_stop(void);
bool mx_recorder_is_on(void);

/* Adds an event of kind MX_EVENT_SPAN named `name`. Ignored unless a recording is running. */
void mx_recorder_span(const char *name, double start_s, double end_s);

/* The events since the last start; valid until the next event. Running jobs are not included. MX_ERR_MEMORY if there
 * was not enough memory for all events; MX_ERR_STATE if the simulation was started or stopped during the recording, or
 * if a job failed that no one had waited for. */
mx_status mx_recorder_get(mx_recording *out);

#endif
