/* What convolutions and pooling share. */
#ifndef MX_OPS_CONV_H
#define MX_OPS_CONV_H

#include "ops/pointwise.h"

/* Entry d of an option with one number, or one for each of the n dimensions; `standard` if there are none. MX_ERR_VALUE
 * for another number of entries, or a value below `least`. */
mx_status mx_window_entry(const mx_call *call, const char *name, const mx_shape *given, int n, int d, int64_t least,
                          int64_t standard, int64_t *value);

/* Checks that input i has n dimensions and is f32 or bf16. */
mx_status mx_want_planes(const mx_call *call, int i, int n);

#endif
