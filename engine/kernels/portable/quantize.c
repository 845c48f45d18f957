#include "kernels/context.h"

#include "kernels/quantize_loops.h"

static void widen(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype code, mx_bf16 *values)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            uint8_t c = codes[i * stride + j];
            values[i * n + j] = mx_to_bf16(code == MX_I8 ? (float)(int8_t)c : mx_from_code(c, code));
        }
}

const mx_quantize_paths mx_quantize_portable = QUANTIZE_LOOPS(find_largest_each, round_to_codes);
