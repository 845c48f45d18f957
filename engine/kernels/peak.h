/* Peaks of this very machine, measured: what rates are given as a percentage of. */
#ifndef MX_KERNELS_PEAK_H
#define MX_KERNELS_PEAK_H

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/status.h"

/* Operations per second (2 for a multiply-add) of `threads` threads that do nothing but the instruction with which the
 * kernels of `isa` multiply `dtype` (f32 or bf16), on registers, in independent sums. Measured for about `seconds`;
 * the best of several runs. MX_ERR_VALUE when this processor lacks `isa`, MX_ERR_DTYPE for any other dtype. */
mx_status mx_peak_fma(mx_isa isa, mx_dtype dtype, int threads, double seconds, double *flops_per_s);

/* Bytes read and written per second by a copy between arrays of four times the last-level cache or more, by plain or
 * streaming stores, whichever is faster. What a plain store reads before it writes is not counted. MX_ERR_MEMORY. */
mx_status mx_peak_copy(int threads, double seconds, double *bytes_per_s);

/* Operations per second of the path in use where everything is in a cache: the inner kernel of products of `dtype`,
 * bf16 or i8, on a packed block of A in the second-level cache, a panel of B and the sums of one block of C in the
 * first. It is what a product can reach; mx_peak_fma is what the instruction can reach without any operand from memory.
 * MX_ERR_DTYPE for another dtype, MX_ERR_MEMORY. */
mx_status mx_peak_product(mx_dtype dtype, int threads, double seconds, double *flops_per_s);

/* "VDPBF16PS, 512 bits" and so on: what mx_peak_fma times. */
const char *mx_peak_instruction(mx_isa isa, mx_dtype dtype);

#endif
