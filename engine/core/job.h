/* Jobs and lanes: work that goes on beside the script.
 *
 * A lane is a thread that runs jobs one at a time, in the order in which they were given. A tensor whose values a job
 * writes or reads knows it through its storage (core/tensor.h): mx_apply waits where an operation needs the values, so
 * a script never sees half of a result. All functions here are called by the script's thread only; the lane's thread
 * calls nothing but the job's run.
 *
 * The device decides how a job runs (core/device.h). On the host the lane's thread does. A simulated device has no
 * threads: the job runs when it is given to its lane, its device sets when it starts and ends, and it is finished once
 * the device's clock has reached its end. */
#ifndef MX_CORE_JOB_H
#define MX_CORE_JOB_H

#include "core/device.h"
#include "core/tensor.h"

#include <stdatomic.h>

typedef struct mx_job mx_job;
typedef struct mx_lane mx_lane;

/* What a job does, in words, for who observes. Texts are NULL (numbers 0) where they say nothing of it. */
typedef struct mx_job_about {
    const char *kind;  /* "all_gather" */
    const char *over;  /* the mesh axes: "fsdp" */
    const char *dtype; /* of what travels */
    const char *where; /* the script's line: "train.lua:12" */
    int64_t count;     /* elements of one part */
    double bytes;      /* that this rank sends, or moves to or from the host */
    int tensors;       /* that travel together */
} mx_job_about;

/* A part of a simulated job: what it went on, and for how long. */
typedef struct mx_job_part {
    const char *track; /* "network in the slice"; NULL: no such part */
    double seconds;
} mx_job_part;

enum { MX_JOB_HELD, MX_JOB_QUEUED, MX_JOB_FINISHED };

struct mx_job {
    mx_status (*run)(mx_job *job); /* on the lane's thread, or in mx_lane_do on the caller's */
    void (*done)(mx_job *job);     /* on the script's thread, once and last: lets go of all it held, and of the job */
    mx_lane *lane;
    mx_device *device; /* current when the job was given to its lane: it runs the job */
    mx_job *next;
    atomic_int state; /* held: made, and not yet given to its lane, which waiting for it does */
    mx_status status;
    char message[1024];                          /* of a run that failed */
    double start_s, end_s;                       /* of run, in seconds of mx_clock; in simulated time run sets both */
    double *exposed_s;                           /* where waiting for it is added up too; NULL: nowhere */
    mx_job_about (*describe)(const mx_job *job); /* script's thread, before done; NULL: the lane's name says enough */
    mx_job_part part[2];                         /* simulated: one after the other, from start_s on */
};

/* Who observes jobs. Called on the script's thread; seconds of mx_clock. NULL: nobody. */
typedef struct mx_job_hooks {
    void (*ended)(const mx_job *job); /* before done */
    /* The script's thread waited for the job, or ran it itself. */
    void (*waited)(const mx_job *job, double start_s, double end_s);
    /* Simulated: the chip moved through its memory what the job sends and receives. */
    void (*copied)(const mx_job *job, double start_s, double end_s);
} mx_job_hooks;
extern mx_job_hooks mx_job_observer;

const char *mx_lane_name(const mx_lane *lane);

/* On the host, the thread starts with the first job. MX_ERR_MEMORY when there is no room for it. */
mx_status mx_lane_new(const char *name, mx_lane **out);

/* Of a lane without a thread and without jobs. NULL is allowed. */
void mx_lane_free(mx_lane *lane);

/* Gives the job to its lane. A job that failed and that nobody waited for makes the next call here fail. */
mx_status mx_lane_submit(mx_job *job);

/* Runs the job and returns when it is done: on the calling thread when the lane is idle, which saves two switches. */
mx_status mx_lane_do(mx_job *job);

/* Waits for the job, and so for all before it, and ends them. The status and message of the first that failed. */
mx_status mx_job_wait(mx_job *job);

/* Ends the jobs that are finished, without waiting. mx_lane_drain waits for all that were given. */
mx_status mx_lane_reap(mx_lane *lane);
mx_status mx_lanes_reap(void); /* of all lanes */
mx_status mx_lane_drain(mx_lane *lane);

/* Waits until the values of t may be read (for_writing: changed, which mx_storage_change counts). MX_OK at once where
 * no job has to do with them. */
mx_status mx_tensor_wait(const mx_tensor *t, bool for_writing);

/* Waits for all jobs that have to do with the values of t, but for those of lane `own` (NULL: for these too), which
 * come before whatever that lane is given next. Nothing to wait for where t is NULL. */
mx_status mx_tensor_wait_others(const mx_tensor *t, const mx_lane *own);

/* Seconds that the script's thread has spent in the lane's jobs, waiting for them or running them, since the last call
 * with `reset`; and seconds that jobs ran. */
typedef struct mx_lane_times {
    double exposed_s, busy_s;
    int64_t jobs;
} mx_lane_times;
mx_lane_times mx_lane_get_times(mx_lane *lane, bool reset);

/* ---- for devices ---- */

/* submit, is_done and wait of a device whose jobs run on the lanes' threads, in their order. MX_ERR_MEMORY when a
 * thread cannot be started. */
mx_status mx_thread_submit(mx_job *job);
bool mx_thread_is_done(const mx_job *job);
void mx_thread_wait(const mx_job *job);

/* submit of a device that starts jobs itself: calls run, which the device gives a start and an end. */
mx_status mx_job_submit_here(mx_job *job);

#endif
