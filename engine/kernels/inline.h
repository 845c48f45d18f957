/* What kernels and their drivers share: functions that are inlined whatever the compiler thinks, and arithmetic of
 * sizes. */
#ifndef MX_KERNELS_INLINE_H
#define MX_KERNELS_INLINE_H

#include <stdint.h>

/* A function that is compiled once more for each set of constants it is called with. */
#define MX_INLINE static inline __attribute__((always_inline))

MX_INLINE int64_t mx_min(int64_t a, int64_t b) { return a < b ? a : b; }
MX_INLINE int64_t mx_max(int64_t a, int64_t b) { return a > b ? a : b; }
MX_INLINE int64_t mx_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; } /* a >= 0, b > 0 */
MX_INLINE int64_t mx_round_up(int64_t a, int64_t multiple) { return mx_ceil_div(a, multiple) * multiple; }

#endif
