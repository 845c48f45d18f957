#include "kernels/shape.h"

#include "kernels/context.h"
#include "kernels/embedding.h"

#include <string.h>

enum { PIECE_BYTES = 65536, PARALLEL_FROM = 65536 };

void mx_copy_runs(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t runs, int64_t bytes)
{
    int64_t pieces = (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
#pragma omp parallel for collapse(2) schedule(static) if (runs * bytes > PARALLEL_FROM)
    for (int64_t r = 0; r < runs; r++)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t first = p * PIECE_BYTES, n = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
            memcpy((char *)to + r * to_step + first, (const char *)from + r * from_step + first, (size_t)n);
        }
}

void mx_zero_runs(void *to, int64_t to_step, int64_t runs, int64_t bytes)
{
    int64_t pieces = (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
#pragma omp parallel for collapse(2) schedule(static) if (runs * bytes > PARALLEL_FROM)
    for (int64_t r = 0; r < runs; r++)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t first = p * PIECE_BYTES, n = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
            memset((char *)to + r * to_step + first, 0, (size_t)n);
        }
}

void mx_add_runs(void *to, int64_t to_step, const void *from, int64_t from_step, mx_dtype dtype, int64_t runs,
                 int64_t n)
{
    enum { PIECE = 16384 };
    int64_t pieces = (n + PIECE - 1) / PIECE, bytes = (int64_t)mx_dtype_bytes(dtype);
    const mx_row_paths *path = mx_kernels_current()->rows;
#pragma omp parallel for collapse(2) schedule(static) if (runs * n > PIECE)
    for (int64_t r = 0; r < runs; r++)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t first = p * PIECE, part = n - first < PIECE ? n - first : PIECE;
            void *sum = (char *)to + (r * to_step + first) * bytes;
            const void *addend = (const char *)from + (r * from_step + first) * bytes;
            if (dtype == MX_F64)
                for (int64_t i = 0; i < part; i++)
                    ((double *)sum)[i] += ((const double *)addend)[i];
            else
                path->add(sum, dtype, addend, dtype, 1.0f, part);
        }
}

/* A permutation reduced to what matters: no dimension of size 1, none that stays beside its neighbour. In the order of
 * the result; strides in elements. */
typedef struct layout {
    int n_dims;
    int64_t size[8], to_stride[8], from_stride[8];
} layout;

static layout reduce(int n_dims, const int64_t *size, const int *order)
{
    int64_t stride[8], step = 1;
    for (int d = n_dims - 1; d >= 0; d--) {
        stride[d] = step;
        step *= size[d];
    }
    layout l = {0};
    for (int d = 0; d < n_dims; d++) {
        int64_t n = size[order[d]], from = stride[order[d]];
        int k = l.n_dims - 1;
        if (n == 1)
            continue;
        if (k >= 0 && l.from_stride[k] == n * from) {
            l.size[k] *= n;
            l.from_stride[k] = from;
            continue;
        }
        l.size[l.n_dims] = n;
        l.from_stride[l.n_dims++] = from;
    }
    step = 1;
    for (int d = l.n_dims - 1; d >= 0; d--) {
        l.to_stride[d] = step;
        step *= l.size[d];
    }
    return l;
}

/* Offsets of combination `i` of the dimensions but `skip_a` and `skip_b`, the last fastest. */
static void offsets(const layout *l, int64_t i, int skip_a, int skip_b, int64_t *to, int64_t *from)
{
    *to = *from = 0;
    for (int d = l->n_dims - 1; d >= 0; d--) {
        if (d == skip_a || d == skip_b)
            continue;
        int64_t at = i % l->size[d];
        i /= l->size[d];
        *to += at * l->to_stride[d];
        *from += at * l->from_stride[d];
    }
}

static int64_t combinations(const layout *l, int skip_a, int skip_b)
{
    int64_t count = 1;
    for (int d = 0; d < l->n_dims; d++)
        count *= d == skip_a || d == skip_b ? 1 : l->size[d];
    return count;
}

/* The last dimension stays last: runs of it are copied. */
static void permute_runs(char *to, const char *from, const layout *l, int64_t bytes)
{
    int last = l->n_dims - 1;
    int64_t runs = combinations(l, last, last), run = l->size[last] * bytes;
    int64_t together = 1 + 4096 / run, groups = (runs + together - 1) / together;
#pragma omp parallel for schedule(static) if (runs * run > PARALLEL_FROM)
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = g * together; r < (g + 1) * together && r < runs; r++) {
            int64_t to_at, from_at;
            offsets(l, r, last, last, &to_at, &from_at);
            memcpy(to + to_at * bytes, from + from_at * bytes, (size_t)run);
        }
}

/* The last dimension of the result is another than the source's: tiles of the two are transposed. */
static void permute_tiles(char *to, const char *from, const layout *l, int64_t bytes)
{
    mx_transpose_path *path = mx_kernels_current()->transpose;
    int last = l->n_dims - 1, across = 0; /* contiguous in the result, contiguous in the source */
    while (l->from_stride[across] != 1)
        across++;
    int64_t rows = l->size[last], columns = l->size[across];
    int64_t others = combinations(l, last, across), bands = (columns + MX_TILE - 1) / MX_TILE;
#pragma omp parallel for collapse(2) schedule(static) if (others * rows * columns * bytes > PARALLEL_FROM)
    for (int64_t o = 0; o < others; o++)
        for (int64_t b = 0; b < bands; b++) {
            int64_t to_at, from_at, c = b * MX_TILE, wide = columns - c < MX_TILE ? columns - c : MX_TILE;
            offsets(l, o, last, across, &to_at, &from_at);
            for (int64_t r = 0; r < rows; r += MX_TILE) {
                int64_t high = rows - r < MX_TILE ? rows - r : MX_TILE;
                path(to + (to_at + c * l->to_stride[across] + r) * bytes, l->to_stride[across],
                     from + (from_at + r * l->from_stride[last] + c) * bytes, l->from_stride[last], high, wide,
                     (size_t)bytes);
            }
        }
}

void mx_permute(void *to, const void *from, int n_dims, const int64_t *size, const int *order, size_t element_bytes)
{
    int64_t count = 1;
    for (int d = 0; d < n_dims; d++)
        count *= size[d];
    if (count == 0)
        return;
    layout l = reduce(n_dims, size, order);
    if (l.n_dims <= 1)
        mx_copy_runs(to, 0, from, 0, 1, count * (int64_t)element_bytes);
    else if (l.from_stride[l.n_dims - 1] == 1)
        permute_runs(to, from, &l, (int64_t)element_bytes);
    else
        permute_tiles(to, from, &l, (int64_t)element_bytes);
}

void mx_scale_values(void *values, mx_dtype dtype, float factor, int64_t n)
{
    enum { PIECE = 16384 };
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t bytes = (int64_t)mx_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (n > PIECE)
    for (int64_t first = 0; first < n; first += PIECE) {
        char *piece = (char *)values + first * bytes;
        path->convert(piece, dtype, piece, dtype, factor, n - first < PIECE ? n - first : PIECE);
    }
}
