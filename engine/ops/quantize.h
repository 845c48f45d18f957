/* The attributes of quantize, for operations that are composed of it. */
#ifndef MX_OPS_QUANTIZE_H
#define MX_OPS_QUANTIZE_H

#include "kernels/quantize.h"
#include "ops/op.h"

typedef struct mx_quantize_attr {
    int dtype;          /* of the codes */
    int by;             /* mx_quantize_by */
    int64_t stochastic; /* the key of stochastic rounding; -1: to nearest */
    int cast;           /* MX_BF16: to which x is rounded first; -1: x as it is */
} mx_quantize_attr;

enum { MX_QUANTIZE_X, MX_QUANTIZE_SCALE, MX_QUANTIZE_ROW_FACTOR, MX_QUANTIZE_COLUMN_FACTOR, MX_QUANTIZE_LARGEST };

/* MX_ERR_DTYPE unless `dtype`, an attribute of that name, is one of codes. */
mx_status mx_want_codes(const mx_call *call, const char *name, int dtype);

#endif
