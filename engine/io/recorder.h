/* The recorder: what a run did, event by event, for a trace (io/trace.h) and for reports.
 *
 * It observes every operation (ops/op.h) and every job of a lane (core/job.h), with the memory in use after each.
 * Events are kept in memory, about 100 bytes each, until the next start: nothing is formatted or written while the run
 * goes on. Times are seconds of mx_clock, so a simulated run is recorded as a real one. Script's thread only; not
 * collective. */
#ifndef MX_IO_RECORDER_H
#define MX_IO_RECORDER_H

#include "ops/op.h"

/* In the order in which they enclose each other on the script's thread. */
typedef enum mx_event_kind {
    MX_EVENT_SPAN,      /* what the script names: a step */
    MX_EVENT_OPERATION, /* a call of mx_apply */
    MX_EVENT_COPY,      /* a simulated chip moves through its memory what a job sends and receives */
    MX_EVENT_WAIT,      /* the script's thread waits for a job, or runs it itself */
    MX_EVENT_JOB,       /* a job, or one of the two parts of a simulated one; not on the script's thread */
} mx_event_kind;

/* Texts are interned, and NULL where there is nothing to say; of a copy and a wait, they are the job's. */
typedef struct mx_event {
    mx_event_kind kind;
    const char *name;             /* "matmul", "all_gather", "step 3" */
    const char *track;            /* of a job: what it went on */
    const char *inputs, *outputs; /* of an operation: "bf16 (2, 3), f32 (3, 4)" */
    const char *over, *dtype, *where;
    double start_s, end_s;
    mx_work work;
    bool collective;     /* an operation of all ranks of an axis */
    double flops, bytes; /* of an operation, its cost; of a job, what this rank sends or moves to the host */
    int64_t count;       /* of a job: elements of one part */
    int tensors;
    int64_t memory_bytes; /* in use after an operation */
} mx_event;

typedef struct mx_recording {
    const mx_event *events; /* in the order in which they ended */
    int64_t n;
    double start_s, end_s; /* end_s: now, while it goes on */
    bool simulated;
    int64_t memory_bytes; /* in use at the start */
} mx_recording;

/* Forgets what was recorded before. MX_ERR_STATE when one goes on. */
mx_status mx_recorder_start(void);
void mx_recorder_stop(void);
bool mx_recorder_is_on(void);

/* An event of the script's own, named `name`. Ignored while nothing is recorded. */
void mx_recorder_span(const char *name, double start_s, double end_s);

/* What has been recorded since the last start; valid until the next event. Jobs that still run are not in it.
 * MX_ERR_MEMORY when there was no room for all of it, MX_ERR_STATE when the simulation was started or stopped
 * meanwhile, or when a job failed that nobody had waited for. */
mx_status mx_recorder_get(mx_recording *out);

#endif
