/* Permutations of dimensions: by runs, by squares, and by patterns where rows or columns are few. */
#include "kernels/shape.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <immintrin.h>
#include <string.h>

enum { PARALLEL_FROM = 65536, PANEL_BYTES = 256, LONG_PANEL_BYTES = 1024 };

/* A permutation reduced to what matters: no dimension of size 1, none that stays beside its neighbour. In the order of
 * the result; strides in elements. */
typedef struct layout {
    int n_dims;
    int64_t size[8], to_stride[8], from_stride[8];
    int by_stride[8]; /* dimensions, that of the least stride in the source last */
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
        int place = 0;
        for (int k = 0; k < l.n_dims; k++)
            place += l.from_stride[k] > l.from_stride[d];
        l.by_stride[place] = d;
    }
    return l;
}

/* Offsets of combination `i` of the dimensions but `skip_a` and `skip_b`, the last fastest, or with `near_first` the
 * one of the least stride in the source. */
static void offsets(const layout *l, int64_t i, int skip_a, int skip_b, bool near_first, int64_t *to, int64_t *from)
{
    *to = *from = 0;
    for (int k = l->n_dims - 1; k >= 0; k--) {
        int d = near_first ? l->by_stride[k] : k;
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

/* Columns of the source, which are contiguous there, become rows. The functions do a part of this, `first` to before
 * `last`, for one combination of the other dimensions. */
typedef struct swap {
    const layout *l;
    char *to;
    const char *from;
    int64_t bytes;
    int last, across; /* the dimensions that are contiguous in the result and in the source */
    bool stream;
    mx_shuffle shuffle; /* with few rows or few columns */
} swap;

/* Whether the rows of the result begin at cache lines. */
static bool is_aligned(const swap *s) { return s->l->to_stride[s->across] * s->bytes % 64 == 0; }

/* Tiles of 64 by 128 floats, the rows of one panel after the other: this order reads and writes memory fastest. Rows of
 * the result that do not begin at cache lines are put together in the second-level cache. */
static void swap_squares(const swap *s, int64_t to_at, int64_t from_at, int64_t first, int64_t last)
{
    const mx_move_paths *paths = mx_kernels_current()->moves;
    const layout *l = s->l;
    int64_t columns = l->size[s->across], to_step = l->to_stride[s->across], from_step = l->from_stride[s->last];
    bool aligned = is_aligned(s);
    _Alignas(64) char room[131072];
    int64_t wide = aligned ? 512 / s->bytes : (int64_t)sizeof room / LONG_PANEL_BYTES;
    for (int64_t c = 0; c < columns; c += wide) {
        int64_t n = mx_min(wide, columns - c), rows = last - first;
        char *to = s->to + (to_at + c * to_step + first) * s->bytes;
        const char *from = s->from + (from_at + first * from_step + c) * s->bytes;
        paths->transpose(aligned ? to : room, aligned ? to_step : rows, from, from_step, rows, n, (size_t)s->bytes,
                         aligned && s->stream);
        if (!aligned && rows == to_step) /* whole rows of the result, which are neighbours */
            paths->runs(to, 0, room, 0, 1, n * rows * s->bytes, s->stream);
        else if (!aligned)
            paths->runs(to, to_step * s->bytes, room, rows * s->bytes, n, rows * s->bytes, s->stream);
    }
}

/* Short columns of `count` squares whose rows are neighbours in memory, `near_step` apart in the result: rows of all of
 * them are copied to the second-level cache. Rows that are a power of 2 apart would share too few of its sets. */
enum { SHORT = 256, SHORT_ROOM = 2048 };
static void swap_short(const swap *s, int64_t to_at, int64_t from_at, int64_t first, int64_t last, int64_t count,
                       int64_t near_step)
{
    enum { PIECE = 512, LATER = 2, STEP = SHORT_ROOM + 64 };
    const layout *l = s->l;
    const int64_t columns = l->size[s->across], bytes = s->bytes, row = count * columns * bytes;
    const int64_t from_step = l->from_stride[s->last] * bytes;
    _Alignas(64) char room[PANEL_BYTES / 2 * STEP];
    for (int64_t r = first; r < last; r++) {
        const char *from = s->from + from_at * bytes + r * from_step,
                   *later = from + (r + LATER < last ? LATER : 0) * from_step;
        for (int64_t b = 0; b < row; b += PIECE) {
            for (int64_t i = b; i < mx_min(row, b + PIECE); i += 64)
                __builtin_prefetch(later + i);
            memcpy(room + (r - first) * STEP + b, from + b, (size_t)mx_min(PIECE, row - b));
        }
    }
    for (int64_t k = 0; k < count; k++)
        mx_kernels_current()->moves->transpose(s->to + (to_at + k * near_step + first) * bytes, l->to_stride[s->across],
                                               room + k * columns * bytes, STEP / bytes, last - first, columns,
                                               (size_t)bytes, s->stream);
}

/* Few rows that become neighbours: they are joined like threads of a cord. */
static void join_rows(const swap *s, int64_t to_at, int64_t from_at, int64_t first, int64_t last)
{
    const layout *l = s->l;
    int64_t k = l->size[s->last], step = l->from_stride[s->last], bytes = s->bytes, lanes = s->shuffle.lanes;
    int64_t blocks = (last - first) / lanes, done = first + blocks * lanes;
    char *to = s->to + (to_at + first * k) * bytes, *results[MX_PATTERN_VECTORS];
    const char *rows[MX_PATTERN_VECTORS];
    for (int64_t i = 0; i < k; i++) {
        rows[i] = s->from + (from_at + i * step + first) * bytes;
        results[i] = to + i * lanes * bytes;
    }
    mx_kernels_current()->moves->shuffle(&s->shuffle.pattern, (size_t)bytes, results, k * lanes * bytes, rows,
                                         lanes * bytes, blocks, s->stream);
    mx_moves_portable.transpose(s->to + (to_at + done * k) * bytes, k, s->from + (from_at + done) * bytes, step, k,
                                last - done, (size_t)bytes, false);
}

/* Few columns become rows of their own: neighbours go to different rows. Elements `first` to before `last` of these. */
static void part_columns(const swap *s, int64_t to_at, int64_t from_at, int64_t first, int64_t last)
{
    const layout *l = s->l;
    int64_t k = l->size[s->across], step = l->to_stride[s->across], bytes = s->bytes, lanes = s->shuffle.lanes;
    int64_t blocks = (last - first) / lanes, done = first + blocks * lanes;
    const char *from = s->from + (from_at + first * k) * bytes, *columns[MX_PATTERN_VECTORS];
    char *rows[MX_PATTERN_VECTORS];
    for (int64_t i = 0; i < k; i++) {
        rows[i] = s->to + (to_at + i * step + first) * bytes;
        columns[i] = from + i * lanes * bytes;
    }
    mx_kernels_current()->moves->shuffle(&s->shuffle.pattern, (size_t)bytes, rows, lanes * bytes, columns,
                                         k * lanes * bytes, blocks, s->stream);
    mx_moves_portable.transpose(s->to + (to_at + done) * bytes, step, s->from + (from_at + done * k) * bytes, k,
                                last - done, k, (size_t)bytes, false);
}

/* The last dimension of the result is another than the source's. */
static void permute_swapped(char *to, const char *from, const layout *l, int64_t bytes, bool stream)
{
    enum { NARROW = 4096 }; /* elements of a piece of narrow rows or columns */
    swap s = {.l = l, .to = to, .from = from, .bytes = bytes, .last = l->n_dims - 1, .stream = stream};
    while (l->from_stride[s.across] != 1)
        s.across++;
    int64_t rows = l->size[s.last], columns = l->size[s.across], n = rows;
    int64_t piece = (is_aligned(&s) ? PANEL_BYTES : LONG_PANEL_BYTES) / bytes;
    int64_t others = combinations(l, s.last, s.across);
    void (*run)(const swap *, int64_t, int64_t, int64_t, int64_t) = swap_squares;
    if (rows <= MX_PATTERN_VECTORS && l->to_stride[s.across] == rows &&
        mx_shuffle_join(&s.shuffle, (int)rows, 1, (size_t)bytes)) {
        run = join_rows;
        piece = NARROW;
        n = columns;
    } else if (columns <= MX_PATTERN_VECTORS && l->from_stride[s.last] == columns &&
               mx_shuffle_part(&s.shuffle, (int)columns, (size_t)bytes)) {
        run = part_columns;
        piece = NARROW;
    }
    int64_t pieces = mx_ceil_div(n, piece);
    /* Of short columns, those that follow in memory are read next, before further rows. */
    const bool across_first = run == swap_squares && columns * bytes <= SHORT;
    const int near = l->by_stride[l->n_dims - 2];
    int64_t together = 1, groups = others;
    if (across_first && bytes > 1 && near != s.last && l->from_stride[near] == columns && is_aligned(&s)) {
        together = mx_min(l->size[near], SHORT_ROOM / (columns * bytes));
        groups = others / l->size[near] * mx_ceil_div(l->size[near], together);
    }
#pragma omp parallel if (others * rows * columns * bytes > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < groups * pieces; i++) {
            int64_t to_at, from_at, p = across_first ? i / groups : i % pieces,
                                    k = across_first ? i % groups : i / pieces;
            const int64_t end = mx_min(n, (p + 1) * piece);
            if (together > 1) {
                const int64_t per = mx_ceil_div(l->size[near], together), own = k % per * together;
                offsets(l, k / per * l->size[near] + own, s.last, s.across, true, &to_at, &from_at);
                swap_short(&s, to_at, from_at, p * piece, end, mx_min(together, l->size[near] - own),
                           l->to_stride[near]);
                continue;
            }
            offsets(l, k, s.last, s.across, across_first, &to_at, &from_at);
            run(&s, to_at, from_at, p * piece, end);
        }
        _mm_sfence();
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
    bool stream = mx_should_stream(2 * count * (int64_t)element_bytes);
    if (l.n_dims <= 1)
        mx_copy_runs(to, 0, from, 0, 1, count * (int64_t)element_bytes);
    else if (l.from_stride[l.n_dims - 1] == 1)
        mx_copy_strided(to, from, l.n_dims, l.size, l.from_stride, element_bytes);
    else
        permute_swapped(to, from, &l, (int64_t)element_bytes, stream);
}
