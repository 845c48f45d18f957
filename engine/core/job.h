/* Jobs and lanes: work in the background, overlapped with the script.
 *
 * A lane is a thread that runs jobs one at a time, in the order in which they were submitted. The storage of a tensor
 * refers to the last jobs that write or read its values (core/tensor.h). mx_apply waits for them if an operation needs
 * the values, so a script never sees a partial result. Only the script's thread calls the functions here; the lane's
 * thread calls only the job's run.
 *
 * The device decides how a job runs (core/device.h). On the host the lane's thread runs it. A simulated device has no
 * threads: the job runs when it is submitted, its device sets the start and end, and it is finished when the device's
 * clock has reached the end. */
#ifndef MX_CORE_JOB_H
#define MX_CORE_JOB_H

#include "core/device.h"
#include "core/tensor.h"

#include <stdatomic.h>

typedef struct mx_job mx_job;
typedef struct mx_lane mx_lane;

/* Describes a job for observers. Texts that do not apply are NULL, numbers are 0. */
typedef struct mx_job_about {
    const char *kind;  /* "all_gather" */
    const char *over;  /* the mesh axes: "fsdp" */
    const char *dtype; /* dtype on the wire */
    const char *where; /* the script's line: "train.lua:12" */
    int64_t count;     /* elements of one part */
    double bytes;      /* bytes that this rank sends, or moves to or from the host */
    int tensors;       /* number of tensors in the bucket */
} mx_job_about;

/* A part of a simulated job: the resource that it used, for how long, and its share of the bytes that the job sends. */
typedef struct mx_job_part {
    const char *track; /* "network in the slice"; NULL: no such part */
    double seconds, bytes;
} mx_job_part;

enum { MX_JOB_HELD, MX_JOB_QUEUED, MX_JOB_FINISHED };

struct mx_job {
    mx_status (*run)(mx_job *job); /* on the lane's thread, or in mx_lane_do on the caller's */
    void (*done)(mx_job *job);     /* on the script's thread, once and last: releases everything it held, and the job */
    mx_lane *lane;
    mx_device *device; /* the device that runs the job: current when the job was submitted */
    mx_job *next;
    atomic_int state; /* held: not yet submitted; waiting for the job submits it */
    mx_status status;
    char message[1024];                          /* if run failed */
    double start_s, end_s;                       /* of run, in seconds of mx_clock; in simulation run sets both */
    double *exposed_s;                           /* waiting time is added here too; NULL: nowhere */
    mx_job_about (*describe)(const mx_job *job); /* script's thread, before done; NULL: the lane's name suffices */
    mx_job_part part[2];                         /* simulated: one after the other, from start_s on */
};

/* The observer of jobs. Called on the script's thread; times are seconds of mx_clock. NULL: none. */
typedef struct mx_job_hooks {
    void (*ended)(const mx_job *job); /* before done */
    /* The script's thread waited for the job, or ran it itself. */
    void (*waited)(const mx_job *job, double start_s, double end_s);
    /* Simulated: the chip's memory traffic for the data that the job sends and receives. */
    void (*copied)(const mx_job *job, double start_s, double end_s);
} mx_job_hooks;
extern mx_job_hooks mx_job_observer;

const char *mx_lane_name(const mx_lane *lane);

/* On the host, the thread starts with the first job. MX_ERR_MEMORY. */
mx_status mx_lane_new(const char *name, mx_lane **out);

/* Frees a lane that has no thread and no jobs. NULL is allowed. */
void mx_lane_free(mx_lane *lane);

/* Submits the job to its lane. If an earlier job has failed and nothing waited for it, this call returns its failure.
 */
mx_status mx_lane_submit(mx_job *job);

/* Runs the job and returns when it is done: on the calling thread if the lane is idle, which saves two thread switches.
 */
mx_status mx_lane_do(mx_job *job);

/* Waits for the job and all jobs before it, and ends them. Returns the status and message of the first that failed. */
mx_status mx_job_wait(mx_job *job);

/* Ends finished jobs without waiting. mx_lane_drain waits for all submitted jobs. */
mx_status mx_lane_reap(mx_lane *lane);
mx_status mx_lanes_reap(void); /* of all lanes */
mx_status mx_lane_drain(mx_lane *lane);

/* Waits until the values of t may be read (for_writing: changed, which mx_storage_change counts). Returns MX_OK at once
 * if no job uses them. */
mx_status mx_tensor_wait(const mx_tensor *t, bool for_writing);

/* Waits for all jobs that use the values of t, except those of lane `own` (NULL: no exception), which run before the
 * next job of that lane anyway. Does nothing if t is NULL. */
mx_status mx_tensor_wait_others(const mx_tensor *t, const mx_lane *own);

/* Since the last call with `reset`: exposed_s, seconds that the script's thread has spent waiting for the lane's jobs
 * or running them; busy_s, seconds that jobs ran. */
typedef struct mx_lane_times {
    double exposed_s, busy_s;
    int64_t jobs;
} mx_lane_times;
mx_lane_times mx_lane_get_times(mx_lane *lane, bool reset);

/* ---- for devices ---- */

/* submit, is_done and wait for a device whose jobs run on the lanes' threads, in order. MX_ERR_MEMORY if a thread
 * cannot be started. */
mx_status mx_thread_submit(mx_job *job);
bool mx_thread_is_done(const mx_job *job);
void mx_thread_wait(const mx_job *job);

/* submit for a device without threads: calls run at once; the device sets the job's start and end. */
mx_status mx_job_submit_here(mx_job *job);

#endif
