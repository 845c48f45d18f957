/* The profiler: sums seconds, FLOPs and bytes of all calls of operations, by name and shapes. */
#ifndef MX_OPS_PROFILE_H
#define MX_OPS_PROFILE_H

#include "ops/op.h"

typedef struct mx_profile_row {
    const mx_op *op;
    const char *shapes; /* of the inputs: "bf16 (2, 3), f32 (3, 4)" */
    int64_t calls;
    double seconds;
    double flops, bytes; /* sums of the costs */
} mx_profile_row;

/* Starts a new profile, or stops. Timing costs two clock reads per call. */
void mx_profile_start(void);
void mx_profile_stop(void);

/* The rows since the last start, longest time first. Valid until the next start. */
int mx_profile_rows(const mx_profile_row **out);

#endif
