/* Between lists of places and ones among zeros: one_hot and nonzero. */
#include "kernels/index.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/shape.h"

#include <immintrin.h>
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
        _mm_sfence();
    }
}

/* ---- nonzero ---- */

int64_t mx_mark_nonzero(mx_array x, int64_t n, uint64_t *mask, int64_t *before)
{
    const mx_mark_paths *paths = mx_kernels_current()->marks;
    const int64_t bytes = (int64_t)mx_dtype_bytes(x.dtype);
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_MARK_CHUNK) {
        const int64_t m = mx_min(n - first, MX_MARK_CHUNK);
        uint64_t *own = mask + first / 64;
        before[first / MX_MARK_CHUNK] = paths->mark(x.dtype, (const char *)x.data + first * bytes, own, m);
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

/* The first of n places from k on, in order, that is not below `limit`. Rows may have few marks or many. */
static int64_t find_end(const int32_t *place, int64_t k, int64_t n, int64_t limit)
{
    int64_t step = 1, high;
    while (k + step < n && place[k + step] < limit) {
        k += step;
        step *= 2;
    }
    high = mx_min(k + step, n);
    while (k < high) {
        int64_t middle = (k + high) / 2;
        if (place[middle] < limit)
            k = middle + 1;
        else
            high = middle;
    }
    return k;
}

/* n marks of a row, whose indices but the last are `at`; place - less is the last. */
static void list_row(const int32_t *place, int64_t n, const int32_t *at, int n_dims, int32_t less, int32_t *y)
{
    if (n_dims == 2) {
        mx_kernels_current()->marks->pairs(place, n, at[0], less, y);
        return;
    }
    for (int64_t i = 0; i < n; i++, y += n_dims) {
        for (int d = 0; d < n_dims - 1; d++)
            y[d] = at[d];
        y[n_dims - 1] = place[i] - less;
    }
}

/* The marks of `words` words; the first one is that of element `first`. Lists go by way of the first-level cache. */
static void list_chunk(const uint64_t *mask, int64_t words, int64_t first, const int64_t *size, int n_dims, int32_t *y,
                       bool stream)
{
    enum { ROOM = 8192 };
    const mx_kernels *paths = mx_kernels_current();
    const int last = n_dims - 1;
    const int64_t width = size[last], most = ROOM / (n_dims * (int64_t)sizeof *y);
    int32_t at[MOST_DIMS], place[MX_MARK_CHUNK + MX_MARK_MORE];
    _Alignas(64) int32_t room[ROOM / sizeof *y];
    int64_t rest = first / width, row = rest * width - first; /* where a row begins, from the first element on */
    int64_t n = paths->marks->places(mask, words, place), listed = 0;
    for (int d = last - 1; d >= 0; d--) {
        at[d] = (int32_t)(rest % size[d]);
        rest /= size[d];
    }
    for (int64_t k = 0, end; k < n; k = end) {
        for (; place[k] - row >= width; row += width)
            advance(at, size, last);
        end = mx_min(find_end(place, k, n, row + width), listed + most);
        list_row(place + k, end - k, at, n_dims, (int32_t)row, room + (k - listed) * n_dims);
        if (end < n && end < listed + most)
            continue;
        paths->elementwise->copy(room, y + listed * n_dims, (end - listed) * n_dims * (int64_t)sizeof *y, stream);
        listed = end;
    }
}

void mx_list_marks(const uint64_t *mask, const int64_t *before, const int64_t *size, int n_dims, int32_t *y)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        n *= size[d];
    if (n_dims == 0 || n == 0)
        return;
    const bool stream = mx_should_stream(before[(n - 1) / MX_MARK_CHUNK] * n_dims * (int64_t)sizeof *y);
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += MX_MARK_CHUNK)
            list_chunk(mask + first / 64, mx_ceil_div(mx_min(n - first, MX_MARK_CHUNK), 64), first, size, n_dims,
                       y + before[first / MX_MARK_CHUNK] * n_dims, stream);
        _mm_sfence();
    }
}
