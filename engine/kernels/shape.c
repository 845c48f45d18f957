#include "kernels/shape.h"

#include "kernels/context.h"
#include "kernels/embedding.h"
#include "kernels/inline.h"

#include <string.h>

enum { PIECE_BYTES = 65536, PARALLEL_FROM = 65536 };

/* Runs of one element, which neighbour others in at most one of the arrays. */
MX_INLINE void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs,
                             const size_t bytes)
{
#pragma omp parallel for schedule(static) if (runs * (int64_t)bytes > PARALLEL_FROM)
    for (int64_t r = 0; r < runs; r++)
        memcpy(to + r * to_step, from + r * from_step, bytes);
}

void mx_copy_runs(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t runs, int64_t bytes)
{
    if (bytes == 2 || bytes == 4 || bytes == 8) {
        bytes == 2   ? copy_elements(to, to_step, from, from_step, runs, 2)
        : bytes == 4 ? copy_elements(to, to_step, from, from_step, runs, 4)
                     : copy_elements(to, to_step, from, from_step, runs, 8);
        return;
    }
    int64_t pieces = (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    bool stream = mx_should_stream(2 * runs * bytes);
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
#pragma omp parallel for collapse(2) schedule(static) if (runs * bytes > PARALLEL_FROM)
    for (int64_t r = 0; r < runs; r++)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t first = p * PIECE_BYTES, n = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
            paths->copy((const char *)from + r * from_step + first, (char *)to + r * to_step + first, n, stream);
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

/* ---- copies with steps ---- */

static void fill_elements(char *to, int64_t n, const void *value, size_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, value, bytes);
    if (bytes == 1)
        memset(to, (int)bits, (size_t)n);
    else if (bytes == 2)
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * 2, &bits, 2);
    else if (bytes == 4)
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * 4, &bits, 4);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * 8, &bits, 8);
}

/* n elements to `to` from `from`, where they are `step` elements apart. */
MX_INLINE void copy_steps_as(char *to, const char *from, int64_t step, int64_t n, const size_t bytes)
{
    if (step == -1) {
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * (int64_t)bytes, from - i * (int64_t)bytes, bytes);
    } else {
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * (int64_t)bytes, from + i * step * (int64_t)bytes, bytes);
    }
}

static void copy_steps(char *to, const char *from, int64_t step, int64_t n, size_t bytes)
{
    if (step == 0)
        fill_elements(to, n, from, bytes);
    else if (bytes == 8)
        copy_steps_as(to, from, step, n, 8);
    else if (bytes == 4)
        copy_steps_as(to, from, step, n, 4);
    else if (bytes == 2)
        copy_steps_as(to, from, step, n, 2);
    else
        copy_steps_as(to, from, step, n, 1);
}

/* What is streamed goes by way of the first-level cache, from which it is written past the others. */
static void copy_run(char *to, const char *from, int64_t step, int64_t n, size_t element_bytes, bool stream)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    char room[8192];
    int64_t bytes = (int64_t)element_bytes, block = stream ? (int64_t)sizeof room / bytes : n;
    if (step == 1) {
        paths->copy(from, to, n * bytes, stream);
        return;
    }
    for (int64_t i = 0; i < n; i += block) {
        int64_t m = mx_min(block, n - i);
        if (step != 0 || i == 0)
            copy_steps(stream ? room : to, from + i * step * bytes, step, m, element_bytes);
        if (stream)
            paths->copy(room, to + i * bytes, m * bytes, true);
    }
}

/* Dimensions without those of size 1; neighbours that one step can cross are joined. At least one is left. */
static int join_strided(int n_dims, const int64_t *size, const int64_t *step, int64_t *n, int64_t *s)
{
    int k = 0;
    n[0] = 1;
    s[0] = 1;
    for (int d = 0; d < n_dims; d++) {
        if (size[d] == 1)
            continue;
        if (k > 0 && s[k - 1] == size[d] * step[d]) {
            n[k - 1] *= size[d];
            s[k - 1] = step[d];
        } else {
            n[k] = size[d];
            s[k++] = step[d];
        }
    }
    return k > 0 ? k : 1;
}

/* Runs of the last dimension; the others, of sizes n and steps s, count them. */
typedef struct strided {
    int64_t n[MX_STRIDED_DIMS], s[MX_STRIDED_DIMS], bytes; /* of an element */
    int last;
    bool stream;
} strided;

/* The place of run i in each dimension, and its offset in elements. */
static int64_t start_of(const strided *r, int64_t i, int64_t place[MX_STRIDED_DIMS])
{
    int64_t offset = 0;
    for (int d = r->last - 1; d >= 0; d--) {
        place[d] = i % r->n[d];
        offset += place[d] * r->s[d];
        i /= r->n[d];
    }
    return offset;
}

/* From there to the next run. */
static int64_t next_of(const strided *r, int64_t offset, int64_t place[MX_STRIDED_DIMS])
{
    for (int d = r->last - 1; d >= 0; d--) {
        offset += r->s[d];
        if (++place[d] < r->n[d])
            return offset;
        place[d] = 0;
        offset -= r->n[d] * r->s[d];
    }
    return offset;
}

/* n copies of each of `runs` elements that are `step` bytes apart, 16 bytes at a time. */
MX_INLINE void repeat_each(char *to, const char *from, int64_t step, int64_t runs, int64_t n, const size_t bytes)
{
    for (int64_t r = 0; r < runs; r++, from += step) {
        uint64_t one = 0, many[2];
        int64_t i = 0;
        memcpy(&one, from, bytes);
        many[0] = many[1] = one * (bytes == 2 ? 0x0001000100010001u : 0x0000000100000001u);
        for (; i + 16 / (int64_t)bytes <= n; i += 16 / (int64_t)bytes, to += 16)
            memcpy(to, many, 16);
        for (; i < n; i++, to += bytes)
            memcpy(to, &one, bytes);
    }
}

/* Runs i to before `end`, of at most 8,192 bytes together. */
static void copy_short_runs(const strided *r, char *to, const char *from, int64_t i, int64_t end)
{
    char room[8192], *at = r->stream ? room : to + i * r->n[r->last] * r->bytes;
    int64_t place[MX_STRIDED_DIMS], offset = start_of(r, i, place), bytes = r->n[r->last] * r->bytes;
    if (r->s[r->last] == 0 && r->last == 1 && (r->bytes == 4 || r->bytes == 2)) {
        from += offset * r->bytes;
        r->bytes == 4 ? repeat_each(at, from, r->s[0] * 4, end - i, r->n[1], 4)
                      : repeat_each(at, from, r->s[0] * 2, end - i, r->n[1], 2);
    } else {
        for (int64_t k = i; k < end; k++, at += bytes, offset = next_of(r, offset, place))
            if (r->s[r->last] == 1)
                memcpy(at, from + offset * r->bytes, (size_t)bytes);
            else
                copy_steps(at, from + offset * r->bytes, r->s[r->last], r->n[r->last], (size_t)r->bytes);
    }
    if (r->stream)
        mx_kernels_current()->elementwise->copy(room, to + i * bytes, (end - i) * bytes, true);
}

void mx_copy_strided(void *to, const void *from, int n_dims, const int64_t *size, const int64_t *step,
                     size_t element_bytes)
{
    enum { PIECE = 16384, SHORT = 4096 };
    strided r = {.bytes = (int64_t)element_bytes};
    int64_t runs = 1, place[MX_STRIDED_DIMS];
    r.last = join_strided(n_dims, size, step, r.n, r.s) - 1;
    for (int d = 0; d < r.last; d++)
        runs *= r.n[d];
    int64_t run = r.n[r.last], bytes = run * r.bytes, pieces = mx_ceil_div(run, PIECE);
    r.stream = mx_should_stream(2 * runs * bytes);
    if (bytes <= SHORT) {
        int64_t together = 2 * SHORT / mx_max(1, bytes);
#pragma omp parallel for schedule(static) if (runs * bytes > PARALLEL_FROM)
        for (int64_t i = 0; i < runs; i += together)
            copy_short_runs(&r, to, from, i, mx_min(runs, i + together));
        return;
    }
#pragma omp parallel for schedule(static) private(place) if (runs * bytes > PARALLEL_FROM)
    for (int64_t i = 0; i < runs * pieces; i++) {
        int64_t first = i % pieces * PIECE, offset = start_of(&r, i / pieces, place) + first * r.s[r.last];
        copy_run((char *)to + (i / pieces * run + first) * r.bytes, (const char *)from + offset * r.bytes, r.s[r.last],
                 mx_min(PIECE, run - first), element_bytes, r.stream);
    }
}

/* ---- padding and triangles ---- */

/* Elements [first, last) of a row of `before`, `n` and `after` elements; from NULL: all are outside. */
static void pad_row(char *to, const char *from, const mx_margins *m, int64_t first, int64_t last, const void *value,
                    size_t element_bytes, bool stream)
{
    int64_t bytes = (int64_t)element_bytes, start = mx_max(first, m->before), end = mx_min(last, m->before + m->n);
    if (!from || start >= end)
        start = end = last;
    fill_elements(to + first * bytes, start - first, value, element_bytes);
    if (end > start)
        mx_kernels_current()->elementwise->copy(from + (start - m->before) * bytes, to + start * bytes,
                                                (end - start) * bytes, stream);
    fill_elements(to + end * bytes, last - end, value, element_bytes);
}

void mx_pad(void *to, const void *from, int n_dims, const mx_margins *margins, const void *value, size_t element_bytes)
{
    enum { PIECE = 16384 };
    int last = n_dims - 1;
    while (last > 0 && margins[last].before == 0 && margins[last].after == 0)
        last--;
    int64_t inner = 1, rows = 1, bytes = (int64_t)element_bytes;
    for (int d = last + 1; d < n_dims; d++)
        inner *= margins[d].n;
    for (int d = 0; d < last; d++)
        rows *= margins[d].before + margins[d].n + margins[d].after;
    mx_margins row = n_dims > 0 ? margins[last] : (mx_margins){0, 1, 0};
    row = (mx_margins){row.before * inner, row.n * inner, row.after * inner};
    int64_t width = row.before + row.n + row.after, pieces = mx_ceil_div(width, PIECE), items = rows * pieces;
    int64_t together = 1 + 4096 / mx_max(1, width * bytes);
    bool stream = mx_should_stream(2 * rows * width * bytes);
#pragma omp parallel for schedule(static) if (rows * width * bytes > PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(items, together); group++)
        for (int64_t i = group * together; i < mx_min(items, (group + 1) * together); i++) {
            int64_t offset = 0, stride = row.n, rest = i / pieces, first = i % pieces * PIECE;
            bool inside = true;
            for (int d = last - 1; d >= 0; d--) {
                int64_t at = rest % (margins[d].before + margins[d].n + margins[d].after) - margins[d].before;
                rest /= margins[d].before + margins[d].n + margins[d].after;
                inside = inside && at >= 0 && at < margins[d].n;
                offset += at * stride;
                stride *= margins[d].n;
            }
            pad_row((char *)to + i / pieces * width * bytes, inside ? (const char *)from + offset * bytes : NULL, &row,
                    first, mx_min(width, first + PIECE), value, element_bytes, stream);
        }
}

void mx_triangle(void *to, const void *from, int64_t count, int64_t m, int64_t n, int64_t diagonal, bool upper,
                 size_t element_bytes)
{
    int64_t bytes = (int64_t)element_bytes, rows = count * m, together = 1 + 4096 / mx_max(1, n * bytes);
    bool stream = mx_should_stream(2 * rows * n * bytes);
    const uint64_t zero = 0;
#pragma omp parallel for schedule(static) if (rows * n * bytes > PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(rows, together); group++)
        for (int64_t r = group * together; r < mx_min(rows, (group + 1) * together); r++) {
            int64_t edge = mx_min(n, mx_max(0, r % m + diagonal + !upper)), first = upper ? edge : 0;
            const mx_margins row = {first, upper ? n - edge : edge, 0};
            pad_row((char *)to + r * n * bytes, (const char *)from + (r * n + first) * bytes, &row, 0, n, &zero,
                    element_bytes, stream);
        }
}

/* ---- rows by id ---- */

void mx_take_runs(void *to, const void *from, const int32_t *ids, int64_t outer, int64_t n, int64_t n_ids,
                  int64_t bytes)
{
    int64_t rows = outer * n_ids, together = 1 + 4096 / mx_max(1, bytes);
    bool stream = mx_should_stream(2 * rows * bytes);
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
#pragma omp parallel for schedule(static) if (rows * bytes > PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(rows, together); group++)
        for (int64_t r = group * together; r < mx_min(rows, (group + 1) * together); r++) {
            const char *row = (const char *)from + (r / n_ids * n + ids[r % n_ids]) * bytes;
            if (bytes == 4)
                memcpy((char *)to + r * 4, row, 4);
            else if (bytes == 2)
                memcpy((char *)to + r * 2, row, 2);
            else
                paths->copy(row, (char *)to + r * bytes, bytes, stream);
        }
}

/* ---- permutations ---- */

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
