/* Between lists of places and ones among zeros: one_hot and nonzero. */
#include "kernels/index.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <string.h>

/* ---- one_hot ---- */

/* Rows of zeros in the first-level cache get their ones, are copied, and lose them again. */
void mx_one_hot(const int32_t *ids, int64_t n, int64_t classes, mx_array y)
{
    enum { ROOM = 16384 };
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    const int64_t bytes = classes * (int64_t)mx_dtype_bytes(y.dtype), rows = bytes ? ROOM / bytes : 0;
    if (rows == 0) {
        mx_zero_runs(y.data, 0, 1, n * bytes);
        for (int64_t i = 0; i < n; i++)
            mx_set_number(y.data, i * classes + ids[i], 1, y.dtype);
        return;
    }
    bool stream = mx_should_stream(n * bytes);
#pragma omp parallel if (n * classes >= MX_PARALLEL_FROM)
    {
        _Alignas(64) char room[ROOM] = {0};
#pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += rows) {
            const int64_t m = mx_min(rows, n - first);
            for (int64_t i = 0; i < m; i++)
                mx_set_number(room, i * classes + ids[first + i], 1, y.dtype);
            paths->copy(room, (char *)y.data + first * bytes, m * bytes, stream);
            for (int64_t i = 0; i < m; i++)
                mx_set_number(room, i * classes + ids[first + i], 0, y.dtype);
        }
    }
}

/* ---- nonzero ---- */

/* A product moves the 8 bytes of a word, which are 0 or 1, to the 8 bits of its last byte. */
MX_INLINE uint64_t pack_flags(const uint8_t flag[64])
{
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t word;
        memcpy(&word, flag + 8 * i, 8);
        mask |= word * 0x0102040810204080u >> 56 << 8 * i;
    }
    return mask;
}

/* `bits`: those of an element that are not 0 unless the number is 0. */
#define DEFINE_MARKS(name, type, bits)                                                                                 \
    static void name(const type *x, uint64_t *mask, int64_t n)                                                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i += 64) {                                                                          \
            uint8_t flag[64] = {0};                                                                                    \
            if (n - i >= 64)                                                                                           \
                for (int k = 0; k < 64; k++)                                                                           \
                    flag[k] = (x[i + k] & (type)(bits)) != 0;                                                          \
            for (int64_t k = i; n - i < 64 && k < n; k++)                                                              \
                flag[k - i] = (x[k] & (type)(bits)) != 0;                                                              \
            mask[i / 64] = pack_flags(flag);                                                                           \
        }                                                                                                              \
    }
DEFINE_MARKS(marks_u8, uint8_t, UINT8_MAX)
DEFINE_MARKS(marks_f8, uint8_t, 0x7f)
DEFINE_MARKS(marks_bf16, uint16_t, 0x7fff)
DEFINE_MARKS(marks_i32, uint32_t, UINT32_MAX)
DEFINE_MARKS(marks_f32, uint32_t, 0x7fffffff)
DEFINE_MARKS(marks_i64, uint64_t, UINT64_MAX)
DEFINE_MARKS(marks_f64, uint64_t, INT64_MAX)

static void mark_words(mx_dtype dtype, const void *x, uint64_t *mask, int64_t n)
{
    const size_t bytes = mx_dtype_bytes(dtype);
    const bool whole = mx_dtype_is_integer(dtype);
    if (bytes == 8)
        whole ? marks_i64(x, mask, n) : marks_f64(x, mask, n);
    else if (bytes == 4)
        whole ? marks_i32(x, mask, n) : marks_f32(x, mask, n);
    else if (bytes == 2)
        marks_bf16(x, mask, n);
    else
        whole ? marks_u8(x, mask, n) : marks_f8(x, mask, n);
}

int64_t mx_mark_nonzero(mx_array x, int64_t n, uint64_t *mask, int64_t *before)
{
    const int64_t bytes = (int64_t)mx_dtype_bytes(x.dtype);
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_MARK_CHUNK) {
        const int64_t m = mx_min(n - first, MX_MARK_CHUNK);
        uint64_t *own = mask + first / 64;
        mark_words(x.dtype, (const char *)x.data + first * bytes, own, m);
        int64_t found = 0;
        for (int64_t w = 0; w < mx_ceil_div(m, 64); w++)
            found += __builtin_popcountll(own[w]);
        before[first / MX_MARK_CHUNK] = found;
    }
    int64_t sum = 0;
    for (int64_t k = 0; k < mx_ceil_div(n, MX_MARK_CHUNK); k++) {
        int64_t found = before[k];
        before[k] = sum;
        sum += found;
    }
    return sum;
}

enum { MOST_DIMS = 8 }; /* of a tensor */

/* Advances the index of a row by one. */
static void advance(int32_t *at, const int64_t *size, int last)
{
    for (int d = last - 1; d >= 0 && ++at[d] == size[d]; d--)
        at[d] = 0;
}

/* The marks of `words` words; the first one is that of element `first`. */
static void list_chunk(const uint64_t *mask, int64_t words, int64_t first, const int64_t *size, int n_dims, int32_t *y)
{
    const int last = n_dims - 1;
    const int64_t width = size[last];
    int64_t rest = first / width, row = rest * width;
    int32_t at[MOST_DIMS];
    for (int d = last - 1; d >= 0; d--) {
        at[d] = (int32_t)(rest % size[d]);
        rest /= size[d];
    }
    for (int64_t w = 0; w < words; w++)
        for (uint64_t bits = mask[w]; bits; bits &= bits - 1) {
            const int64_t i = first + 64 * w + __builtin_ctzll(bits);
            for (; i - row >= width; row += width)
                advance(at, size, last);
            for (int d = 0; d < last; d++)
                y[d] = at[d];
            y[last] = (int32_t)(i - row);
            y += n_dims;
        }
}

void mx_list_marks(const uint64_t *mask, const int64_t *before, const int64_t *size, int n_dims, int32_t *y)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        n *= size[d];
    if (n_dims == 0)
        return;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_MARK_CHUNK)
        list_chunk(mask + first / 64, mx_ceil_div(mx_min(n - first, MX_MARK_CHUNK), 64), first, size, n_dims,
                   y + before[first / MX_MARK_CHUNK] * n_dims);
}
