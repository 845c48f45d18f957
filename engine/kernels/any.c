/* Whether any element, or every one, is not zero: a bit for each element of a piece of memory, then these bits
 * together. The results do not depend on how the work is cut, so threads have shares of whole memory, which they read
 * in order. */
#include "kernels/reduce.h"

#include "kernels/context.h"
#include "kernels/index.h"
#include "kernels/inline.h"

#include <omp.h>
#include <string.h>

enum {
    PIECE = 4096, /* elements that are marked at once, or columns that are searched together; */
    STEP = 1024,  /* of rows fewer, because the search ends with the step that has what it is for */
    WORD = 64,
    SHARES = 4, /* for each thread, so that all end at about the same time */
};

/* What is searched for in each line: an element that is not zero, or with `all` one that is. */
typedef struct search {
    mx_array x;
    mx_extent e;
    bool all;
    uint8_t *y;
} search;

/* Sets the bits of those of n neighbours that are searched for. Bits behind them do not matter; `words` has room for
 * one more. */
static void mark(const search *s, int64_t first, int64_t n, uint64_t *words)
{
    const char *from = (const char *)s->x.data + first * (int64_t)mx_dtype_bytes(s->x.dtype);
    mx_kernels_current()->marks->mark(s->x.dtype, from, words, n);
    for (int64_t w = 0; s->all && w * WORD < n; w++)
        words[w] = ~words[w];
}

/* WORD bits from place i on. */
MX_INLINE uint64_t bits_at(const uint64_t *words, int64_t i)
{
    const uint64_t *word = words + i / WORD;
    return word[0] >> i % WORD | word[1] << 1 << (WORD - 1 - i % WORD);
}

static bool has_mark(const uint64_t *words, int64_t first, int64_t n)
{
    uint64_t found = 0;
    int64_t i = 0;
    for (; i + WORD <= n; i += WORD)
        found |= bits_at(words, first + i);
    return found != 0 || (i < n && bits_at(words, first + i) << (WORD - (n - i)) != 0);
}

static void set_found(const search *s, int64_t line)
{
#pragma omp atomic write
    s->y[line] = !s->all;
}

/* How many parts the lines of each of `groups` groups are cut into. */
static int64_t parts_of(const search *s, int64_t groups)
{
    const int64_t elements = s->e.n * s->e.inner, most = mx_ceil_div(elements, MX_PARALLEL_FROM);
    return mx_min(mx_min(most, s->e.n), mx_ceil_div(SHARES * omp_get_max_threads(), groups));
}

/* ---- rows: inner is 1 ---- */

/* Asks for the beginning of a row, which nothing else does where the search ends early. */
static void prefetch_row(const search *s, int64_t o)
{
    const int64_t size = (int64_t)mx_dtype_bytes(s->x.dtype);
    const char *next = (const char *)s->x.data + o * s->e.n * size;
    for (int64_t b = 0; b < STEP * size; b += 64)
        __builtin_prefetch(next + b);
}

static void search_short_rows(const search *s, int64_t first, int64_t rows)
{
    uint64_t words[STEP / WORD + 1] = {0};
    mark(s, first * s->e.n, rows * s->e.n, words);
    for (int64_t r = 0; r < rows; r++)
        if (has_mark(words, r * s->e.n, s->e.n))
            set_found(s, first + r);
}

static void search_row(const search *s, int64_t o, int64_t first, int64_t last)
{
    uint64_t words[STEP / WORD + 1] = {0};
    bool found = false;
    for (int64_t i = first; i < last && !found; i += STEP) {
        mark(s, o * s->e.n + i, mx_min(STEP, last - i), words);
        found = has_mark(words, 0, mx_min(STEP, last - i));
    }
    if (found) {
        set_found(s, o);
        prefetch_row(s, o + 2);
    }
}

static void search_rows(const search *s)
{
    const mx_extent e = s->e;
    const int64_t together = mx_max(1, STEP / e.n), parts = parts_of(s, e.outer), steps = mx_ceil_div(e.n, STEP);
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < (together > 1 ? e.outer : 0); i += together)
        search_short_rows(s, i, mx_min(together, e.outer - i));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < (together > 1 ? 0 : e.outer * parts); i++)
        search_row(s, i / parts, steps * (i % parts) / parts * STEP,
                   mx_min(e.n, steps * (i % parts + 1) / parts * STEP));
}

/* ---- columns ---- */

/* Adds n marks to those found. Whether all of their words are full then. */
static bool join(uint64_t *found, const uint64_t *words, int64_t first, int64_t n)
{
    uint64_t all = UINT64_MAX;
    for (int64_t w = 0; w * WORD < n; w++)
        all &= found[w] |= bits_at(words, first + w * WORD);
    return all == UINT64_MAX;
}

/* Columns from `from` on in rows `first` to before `last`, as many rows at once as make a piece. */
static void search_columns(const search *s, int64_t o, int64_t first, int64_t last, int64_t from)
{
    const mx_extent e = s->e;
    const int64_t width = mx_min(PIECE, e.inner - from), together = width == e.inner ? PIECE / width : 1;
    uint64_t words[PIECE / WORD + 1] = {0}, found[PIECE / WORD + 1] = {0};
    bool full = false;
    found[width / WORD] = UINT64_MAX << width % WORD; /* no columns, so these need not be found */
    for (int64_t i = first; i < last && !full; i += together) {
        const int64_t rows = mx_min(together, last - i);
        mark(s, (o * e.n + i) * e.inner + from, rows * width, words);
        for (int64_t r = 0; r < rows; r++)
            full = join(found, words, r * width, width);
    }
    for (int64_t j = 0; j < width; j++)
        if (found[j / WORD] >> j % WORD & 1)
            set_found(s, o * e.inner + from + j);
}

static void search_all_columns(const search *s)
{
    const mx_extent e = s->e;
    const int64_t bands = mx_ceil_div(e.inner, PIECE), parts = parts_of(s, e.outer * bands);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands * parts; i++) {
        const int64_t part = i / bands % parts;
        search_columns(s, i / bands / parts, e.n * part / parts, e.n * (part + 1) / parts, i % bands * PIECE);
    }
}

void mx_reduce_any(mx_array x, mx_extent e, bool all, uint8_t *y)
{
    const search s = {x, e, all, y};
    memset(y, all, (size_t)(e.outer * e.inner));
    if (e.outer * e.n * e.inner == 0)
        return;
    if (e.inner == 1)
        search_rows(&s);
    else
        search_all_columns(&s);
}
