#include "kernels/simd/simd.h"
#define PATH_NAME MX_SIMD_NAME(mx_conv)
#include "kernels/conv_rows.h"
