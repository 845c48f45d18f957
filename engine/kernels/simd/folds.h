/* Maxima and means over windows of planes that are read where they are, and their gradients; see mx_window_paths. NULL
 * with AVX2. */
#ifndef MX_KERNELS_SIMD_FOLDS_H
#define MX_KERNELS_SIMD_FOLDS_H

#include "kernels/simd/simd.h"
#include "kernels/windows.h"

bool MX_SIMD_NAME(mx_fold)(const mx_fold *f, const mx_tile *tile, mx_array x, mx_array y, int32_t *place);
bool MX_SIMD_NAME(mx_unfold)(const mx_fold *f, const mx_tile *tile, mx_array dy, const int32_t *place, mx_array dx);

#endif
