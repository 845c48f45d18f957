#include "kernels/shape.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <immintrin.h>
#include <string.h>

enum { PIECE_BYTES = 65536, PARALLEL_FROM = 65536 };

/* Runs that are neighbours in the result and nearly so in the source: the blocks that a pattern takes, counted in runs.
 * It reads whole vectors, and nothing behind the last run. */
static int64_t take_short_runs(char *to, const char *from, int64_t from_step, int64_t runs, int64_t bytes, bool stream)
{
    mx_shuffle s;
    size_t unit = bytes % 4 == 0 && from_step % 4 == 0 ? 4 : 2;
    if (bytes % 2 != 0 || from_step % 2 != 0 || from_step < bytes ||
        !mx_shuffle_take(&s, bytes / (int64_t)unit, from_step / (int64_t)unit, unit))
        return 0;
    int64_t vector = s.lanes * (int64_t)unit, per_block = vector / bytes;
    int64_t readable = (runs - 1) * from_step + bytes - s.pattern.ins * vector;
    int64_t blocks = mx_min(runs / per_block, readable < 0 ? 0 : readable / (per_block * from_step) + 1);
#pragma omp parallel if (blocks * vector > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < blocks; first += PIECE_BYTES / 64) {
            const char *ins[MX_PATTERN_VECTORS];
            for (int b = 0; b < s.pattern.ins; b++)
                ins[b] = from + first * per_block * from_step + b * vector;
            mx_kernels_current()->moves->shuffle(&s.pattern, unit, (char *[]){to + first * vector}, vector, ins,
                                                 per_block * from_step, mx_min(PIECE_BYTES / 64, blocks - first),
                                                 stream);
        }
        _mm_sfence();
    }
    return blocks * per_block;
}

void mx_copy_runs(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t runs, int64_t bytes)
{
    bool stream = mx_should_stream(2 * runs * bytes);
    if (bytes <= 4096) {
        int64_t done = to_step == bytes && runs > 0 ? take_short_runs(to, from, from_step, runs, bytes, stream) : 0;
        int64_t together = 1 + PIECE_BYTES / mx_max(1, bytes);
#pragma omp parallel if ((runs - done) * bytes > PARALLEL_FROM)
        {
#pragma omp for schedule(static)
            for (int64_t r = done; r < runs; r += together)
                mx_kernels_current()->moves->runs((char *)to + r * to_step, to_step, (const char *)from + r * from_step,
                                                  from_step, mx_min(together, runs - r), bytes, stream);
            _mm_sfence();
        }
        return;
    }
    int64_t pieces = (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
#pragma omp parallel if (runs * bytes > PARALLEL_FROM)
    {
#pragma omp for collapse(2) schedule(static)
        for (int64_t r = 0; r < runs; r++)
            for (int64_t p = 0; p < pieces; p++) {
                int64_t first = p * PIECE_BYTES, n = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
                paths->copy((const char *)from + r * from_step + first, (char *)to + r * to_step + first, n, stream);
            }
        _mm_sfence();
    }
}

/* ---- parts of rows ---- */

/* Rows first to before `last`, of at most 8,192 bytes together, by way of the first-level cache. */
static void join_short_rows(char *to, int64_t first, int64_t last, int parts, const mx_row_part *part, int64_t row,
                            bool stream)
{
    char room[8192], *start = stream ? room : to + first * row, *at = start;
    for (int i = 0; i < parts; at += part[i++].bytes)
        mx_kernels_current()->moves->runs(at, row, (const char *)part[i].from + first * part[i].bytes, part[i].bytes,
                                          last - first, part[i].bytes, false);
    if (stream)
        mx_kernels_current()->elementwise->copy(room, to + first * row, (last - first) * row, true);
}

/* The rows that a pattern joins: parts of equal size. */
static int64_t join_by_pattern(char *to, int64_t rows, int parts, const mx_row_part *part, bool stream)
{
    mx_shuffle s;
    int64_t bytes = part[0].bytes;
    size_t unit = bytes % 4 == 0 ? 4 : 2;
    for (int i = 1; i < parts; i++)
        if (part[i].bytes != bytes)
            return 0;
    if (bytes % 2 != 0 || !mx_shuffle_join(&s, parts, bytes / (int64_t)unit, unit))
        return 0;
    int64_t vector = s.lanes * (int64_t)unit, blocks = rows * bytes / vector;
#pragma omp parallel if (blocks * vector > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < blocks; first += PIECE_BYTES / 64) {
            const char *ins[MX_PATTERN_VECTORS];
            char *outs[MX_PATTERN_VECTORS];
            for (int i = 0; i < parts; i++) {
                ins[i] = (const char *)part[i].from + first * vector;
                outs[i] = to + (first * parts + i) * vector;
            }
            mx_kernels_current()->moves->shuffle(&s.pattern, unit, outs, parts * vector, ins, vector,
                                                 mx_min(PIECE_BYTES / 64, blocks - first), stream);
        }
        _mm_sfence();
    }
    return blocks * vector / bytes;
}

void mx_join_rows(void *to, int64_t rows, int parts, const mx_row_part *part)
{
    enum { SHORT = 4096 };
    int64_t row = 0, at = 0;
    for (int i = 0; i < parts; i++)
        row += part[i].bytes;
    if (row == 0 || rows == 0)
        return;
    if (row > SHORT) {
        for (int i = 0; i < parts; at += part[i++].bytes)
            mx_copy_runs((char *)to + at, row, part[i].from, part[i].bytes, rows, part[i].bytes);
        return;
    }
    bool stream = mx_should_stream(2 * rows * row);
    int64_t done = join_by_pattern(to, rows, parts, part, stream), together = 2 * SHORT / row;
#pragma omp parallel if ((rows - done) * row > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t r = done; r < rows; r += together)
            join_short_rows(to, r, mx_min(rows, r + together), parts, part, row, stream);
        _mm_sfence();
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

/* Runs of the last dimension, whose step is 1, 0 or -1; the others, of sizes n and steps s, count them. */
typedef struct strided {
    int64_t n[MX_STRIDED_DIMS], s[MX_STRIDED_DIMS], bytes; /* of an element */
    int last;
    bool stream, shuffles; /* shuffles: there is a pattern, to reverse runs or to repeat each of neighbours */
    mx_shuffle shuffle;
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

MX_INLINE void reverse_as(char *to, const char *from, int64_t n, const size_t bytes)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * (int64_t)bytes, from - i * (int64_t)bytes, bytes);
}

/* n elements to `to`, of which the one at `from` is the first and the ones before it follow. They are read in the order
 * of memory, in which what is asked for ahead of them may be in the next run. */
static void reverse(const strided *r, char *to, const char *from, int64_t n, bool stream)
{
    int64_t vector = r->shuffle.lanes * r->bytes, blocks = r->shuffles ? n / r->shuffle.lanes : 0;
    const char *first = from + r->bytes - blocks * vector;
    char *last = to + (blocks - 1) * vector;
    if (blocks > 0)
        mx_kernels_current()->moves->shuffle(&r->shuffle.pattern, (size_t)r->bytes, &last, -vector, &first, vector,
                                             blocks, stream);
    to += blocks * vector;
    from -= blocks * vector;
    n -= blocks * (r->shuffles ? r->shuffle.lanes : 0);
    if (r->bytes == 8)
        reverse_as(to, from, n, 8);
    else if (r->bytes == 4)
        reverse_as(to, from, n, 4);
    else if (r->bytes == 2)
        reverse_as(to, from, n, 2);
    else
        reverse_as(to, from, n, 1);
}

/* The value of each of `runs` neighbours n times; `known` elements can be read. */
static void repeat_each(const strided *r, char *to, const char *from, int64_t runs, int64_t known, int64_t n,
                        bool stream)
{
    int64_t bytes = r->bytes, done = 0;
    if (r->shuffles) {
        char *outs[MX_PATTERN_VECTORS];
        int64_t vector = r->shuffle.lanes * bytes, block = r->shuffle.pattern.outs * vector, of = block / bytes / n;
        int64_t blocks = mx_min(runs, mx_max(0, known - r->shuffle.lanes + of)) / of; /* each reads a whole vector */
        for (int a = 0; a < r->shuffle.pattern.outs; a++)
            outs[a] = to + a * vector;
        mx_kernels_current()->moves->shuffle(&r->shuffle.pattern, (size_t)bytes, outs, block, &from, of * bytes, blocks,
                                             stream);
        done = blocks * of;
    }
    for (int64_t i = done; i < runs; i++)
        fill_elements(to + i * n * bytes, n, from + i * bytes, (size_t)bytes);
}

/* What is streamed goes by way of the first-level cache, from which it is written past the others, unless its vectors
 * can be streamed as they are. */
static void copy_run(const strided *r, char *to, const char *from, int64_t n)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    char room[8192];
    int64_t bytes = r->bytes, step = r->s[r->last];
    const bool direct = step < 0 && r->shuffles && (uintptr_t)to % (uintptr_t)(r->shuffle.lanes * bytes) == 0;
    const bool by_room = r->stream && !direct;
    const int64_t block = by_room ? (int64_t)sizeof room / bytes : n;
    if (step == 1) {
        paths->copy(from, to, n * bytes, r->stream);
        return;
    }
    for (int64_t i = 0; i < n; i += block) {
        int64_t m = mx_min(block, n - i);
        if (step < 0)
            reverse(r, by_room ? room : to, from - i * bytes, m, r->stream && direct);
        else if (i == 0)
            fill_elements(by_room ? room : to, m, from, (size_t)bytes);
        if (by_room)
            paths->copy(room, to + i * bytes, m * bytes, true);
    }
}

/* Runs i to before `end` to `at`. */
static void put_short_runs(const strided *r, char *at, const char *from, int64_t i, int64_t end, bool stream)
{
    int64_t place[MX_STRIDED_DIMS], offset = start_of(r, i, place), n = r->n[r->last], bytes = n * r->bytes;
    int64_t step = r->s[r->last], inner = r->last > 0 ? r->n[r->last - 1] : 1,
            between = r->last > 0 ? r->s[r->last - 1] : 0;
    for (int64_t m; i < end; i += m, at += m * bytes) { /* runs of one row of the dimension before the last */
        int64_t first = r->last > 0 ? place[r->last - 1] : 0;
        m = mx_min(inner - first, end - i);
        const char *start = from + offset * r->bytes;
        if (step == 1)
            mx_kernels_current()->moves->runs(at, bytes, start, between * r->bytes, m, bytes, stream);
        else if (step == 0 && between == 1)
            repeat_each(r, at, start, m, inner - first, n, stream);
        for (int64_t k = 0; step != 1 && !(step == 0 && between == 1) && k < m; k++)
            step < 0 ? reverse(r, at + k * bytes, start + k * between * r->bytes, n, false)
                     : fill_elements(at + k * bytes, n, start + k * between * r->bytes, (size_t)r->bytes);
        if (r->last > 0) { /* to the last of these, and one on */
            place[r->last - 1] += m - 1;
            offset = next_of(r, offset + (m - 1) * between, place);
        }
    }
}

/* Runs i to before `end`, of at most 8,192 bytes together. Whole cache lines are streamed at once if many of them lie
 * at equal distances (each row of these waits for its stores to end) or repeat elements of a long row, others by way of
 * the first-level cache. */
static void copy_short_runs(const strided *r, char *to, const char *from, int64_t i, int64_t end)
{
    enum { MANY = 4096 };
    char room[8192];
    int64_t bytes = r->n[r->last] * r->bytes, row = r->last > 0 ? r->n[r->last - 1] * bytes : bytes;
    bool repeats = r->s[r->last] == 0 && r->shuffles && r->last > 0 && r->s[r->last - 1] == 1 && row % 64 == 0;
    bool straight = row >= MANY && (repeats || (r->s[r->last] == 1 && bytes % 64 == 0));
    bool by_room = r->stream && !straight;
    put_short_runs(r, by_room ? room : to + i * bytes, from, i, end, r->stream && straight);
    if (by_room)
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
    int64_t along = r.s[r.last],
            across = r.last > 0 ? r.s[r.last - 1] : 0; /* where negative, backward: to read forward */
    if (runs * bytes == 0)
        return;
    r.stream = mx_should_stream(2 * runs * bytes);
    r.shuffles = r.s[r.last] == -1 ? mx_shuffle_reverse(&r.shuffle, element_bytes)
                                   : r.s[r.last] == 0 && mx_shuffle_repeat(&r.shuffle, run, element_bytes);
    if (bytes <= SHORT) {
        int64_t together = 2 * SHORT / bytes;
#pragma omp parallel if (runs * bytes > PARALLEL_FROM)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < runs; i += together)
                copy_short_runs(&r, to, from, i, mx_min(runs, i + together));
            _mm_sfence();
        }
        return;
    }
#pragma omp parallel if (runs * bytes > PARALLEL_FROM)
    {
#pragma omp for schedule(static) private(place)
        for (int64_t i = 0; i < runs * pieces; i++) {
            int64_t k = across < 0 ? runs - 1 - i / pieces : i / pieces, p = i % pieces;
            int64_t first = (along < 0 ? pieces - 1 - p : p) * PIECE, offset = start_of(&r, k, place) + first * along;
            copy_run(&r, (char *)to + (k * run + first) * r.bytes, (const char *)from + offset * r.bytes,
                     mx_min(PIECE, run - first));
        }
        _mm_sfence();
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
#pragma omp parallel if (rows * width * bytes > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
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
                pad_row((char *)to + i / pieces * width * bytes, inside ? (const char *)from + offset * bytes : NULL,
                        &row, first, mx_min(width, first + PIECE), value, element_bytes, stream);
            }
        _mm_sfence();
    }
}

void mx_triangle(void *to, const void *from, int64_t count, int64_t m, int64_t n, int64_t diagonal, bool upper,
                 size_t element_bytes)
{
    int64_t bytes = (int64_t)element_bytes, rows = count * m, together = 1 + 4096 / mx_max(1, n * bytes);
    bool stream = mx_should_stream(2 * rows * n * bytes);
    const uint64_t zero = 0;
#pragma omp parallel if (rows * n * bytes > PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t group = 0; group < mx_ceil_div(rows, together); group++)
            for (int64_t r = group * together; r < mx_min(rows, (group + 1) * together); r++) {
                int64_t edge = mx_min(n, mx_max(0, r % m + diagonal + !upper)), first = upper ? edge : 0;
                const mx_margins row = {first, upper ? n - edge : edge, 0};
                pad_row((char *)to + r * n * bytes, (const char *)from + (r * n + first) * bytes, &row, 0, n, &zero,
                        element_bytes, stream);
            }
        _mm_sfence();
    }
}

/* ---- rows by id ---- */

enum { TAKE_ROOM = 8192 };

/* Rows ids[0 .. count) of `from`, of which a later one, below `known`, is asked for with each. */
MX_INLINE void take_rows_of(char *to, const char *from, const int32_t *ids, int64_t count, int64_t known, int64_t bytes,
                            const bool known_bytes, bool stream)
{
    enum { AHEAD_BYTES = 4096, MOST_AHEAD = 64 };
    const mx_elementwise_paths *paths = known_bytes ? NULL : mx_kernels_current()->elementwise;
    const int64_t ahead = mx_min(MOST_AHEAD, 1 + AHEAD_BYTES / bytes);
    for (int64_t k = 0; k < count; k++, to += bytes) {
        const char *row = from + ids[k] * bytes, *later = from + (k + ahead < known ? ids[k + ahead] : ids[k]) * bytes;
        for (int64_t i = 0; i < mx_min(bytes, AHEAD_BYTES); i += 64)
            __builtin_prefetch(later + i, 0, 2);
        if (known_bytes)
            memcpy(to, row, (size_t)bytes);
        else
            paths->copy(row, to, bytes, stream);
    }
}

/* Short rows go by way of the first-level cache if they are streamed. */
static void take_rows(char *to, const char *from, const int32_t *ids, int64_t count, int64_t known, int64_t bytes,
                      bool stream)
{
    const bool by_room = stream && bytes <= TAKE_ROOM / 2;
    _Alignas(64) char room[TAKE_ROOM];
    char *at = by_room ? room : to;
    if (bytes == 64)
        take_rows_of(at, from, ids, count, known, 64, true, false);
    else if (bytes == 32)
        take_rows_of(at, from, ids, count, known, 32, true, false);
    else if (bytes == 16)
        take_rows_of(at, from, ids, count, known, 16, true, false);
    else if (bytes == 8)
        take_rows_of(at, from, ids, count, known, 8, true, false);
    else if (bytes == 4)
        take_rows_of(at, from, ids, count, known, 4, true, false);
    else if (bytes == 2)
        take_rows_of(at, from, ids, count, known, 2, true, false);
    else
        take_rows_of(at, from, ids, count, known, bytes, false, stream && !by_room);
    if (by_room)
        mx_kernels_current()->elementwise->copy(room, to, count * bytes, true);
}

void mx_take_runs(void *to, const void *from, const int32_t *ids, int64_t outer, int64_t n, int64_t n_ids,
                  int64_t bytes)
{
    if (bytes == 0)
        return;
    int64_t rows = outer * n_ids, together = 1 + TAKE_ROOM / 2 / bytes;
    bool stream = mx_should_stream(2 * rows * bytes);
#pragma omp parallel if (rows * bytes > PARALLEL_FROM)
    {
#pragma omp for collapse(2) schedule(static)
        for (int64_t o = 0; o < outer; o++)
            for (int64_t first = 0; first < n_ids; first += together)
                take_rows((char *)to + (o * n_ids + first) * bytes, (const char *)from + o * n * bytes, ids + first,
                          mx_min(together, n_ids - first), n_ids - first, bytes, stream);
        _mm_sfence();
    }
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
