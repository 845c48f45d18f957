#include "kernels/sort.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <omp.h>

/* An element to sort: its key in the upper half, its id in the lower one. Items differ, so any sort of them is stable.
 */
typedef uint64_t item;

enum {
    RADIX = 256,       /* values of a digit, */
    WIDE_RADIX = 2048, /* or, in lines of middle length, which then take a pass less */
    WIDE_FROM = 2048,
    WIDE_TO = 1 << 17,
    PARTS = 16,           /* a long line is split into so many parts, for threads */
    PARTS_FROM = 1 << 16, /* the length of a long line */
    SHORT = 32,           /* up to this length, insertion is faster */
    LIST = 128,           /* up to this k, the k best so far are kept in a sorted list */
};

typedef struct job {
    mx_array x;
    mx_extent e;
    int64_t k; /* results per line */
    bool descending;
    void *values;
    int32_t *ids;
    bool wide;    /* elements of 8 bytes: two keys, which are sorted one after the other */
    int digits;   /* bytes of a key */
    size_t bytes; /* of an element */
} job;

/* ---- keys ---- */

/* As mx_sort_key, for elements of 8 bytes, and turned around to descend. */
static uint64_t wide_key_of(const job *j, int64_t i)
{
    uint64_t bits = ((const uint64_t *)j->x.data)[i], sign = 1ull << 63;
    if (j->x.dtype == MX_I64)
        bits ^= sign;
    else if (bits << 1 > 0xffe0000000000000u) /* NaN */
        bits = UINT64_MAX;
    else
        bits = bits << 1 == 0 ? sign : bits & sign ? ~bits : bits | sign;
    return j->descending ? ~bits : bits;
}

/* The item of element i of the line that begins at `first`. */
MX_INLINE item item_of(const void *x, int64_t first, int64_t i, int64_t step, const mx_dtype dtype, bool descending)
{
    uint32_t key = mx_sort_key(x, first + i * step, dtype);
    if (descending)
        key ^= UINT32_MAX >> (32 - 8 * mx_dtype_bytes(dtype));
    return (item)key << 32 | (uint32_t)i;
}

#define LOAD_CASE(name)                                                                                                \
    case name:                                                                                                         \
        for (int64_t i = 0; i < j->e.n; i++)                                                                           \
            items[i] = item_of(j->x.data, first, i, j->e.inner, name, j->descending);                                  \
        break;

static void load_items(const job *j, int64_t first, item *items)
{
    switch (j->x.dtype) {
        LOAD_CASE(MX_F32)
        LOAD_CASE(MX_BF16)
        LOAD_CASE(MX_I32)
        LOAD_CASE(MX_I8)
        LOAD_CASE(MX_U8)
    default:
        mx_dtype_unexpected(j->x.dtype, __func__);
    }
}

/* ---- sorting items ---- */

static void insert(item *list, int64_t n, item one)
{
    int64_t at = n;
    for (; at > 0 && list[at - 1] > one; at--)
        list[at] = list[at - 1];
    list[at] = one;
}

/* Elements [first, last) of part p of a line. */
static void part_of(int64_t n, int parts, int p, int64_t *first, int64_t *last)
{
    *first = n * p / parts;
    *last = n * (p + 1) / parts;
}

/* A pass of a sort by one digit: from items or, with `from` NULL, from the elements of x at `first`; to items or, with
 * `into` NULL, to the results at `to`. */
typedef struct pass {
    const job *j;
    int64_t first, to;
    const item *from;
    item *into;
    int shift; /* of the digit in an item */
    uint32_t radix;
    int parts;
} pass;

MX_INLINE void store_result(const job *j, int64_t first, int64_t to, uint32_t id)
{
    const size_t bytes = j->bytes;
    int64_t from = first + id * j->e.inner;
    if (j->ids)
        j->ids[to] = (int32_t)id;
    if (!j->values)
        return;
    if (bytes == 8)
        ((uint64_t *)j->values)[to] = ((const uint64_t *)j->x.data)[from];
    else if (bytes == 4)
        ((uint32_t *)j->values)[to] = ((const uint32_t *)j->x.data)[from];
    else if (bytes == 2)
        ((uint16_t *)j->values)[to] = ((const uint16_t *)j->x.data)[from];
    else
        ((uint8_t *)j->values)[to] = ((const uint8_t *)j->x.data)[from];
}

/* Element i of what a pass reads. */
typedef struct source {
    const item *items;
    const char *x;
    int64_t step;
    bool descending;
} source;

static source source_of(const pass *p)
{
    const job *j = p->j;
    return (source){p->from, (const char *)j->x.data + p->first * (int64_t)mx_dtype_bytes(j->x.dtype), j->e.inner,
                    j->descending};
}

MX_INLINE item get(const source *s, int64_t i, const bool items, const mx_dtype dtype)
{
    return items ? s->items[i] : item_of(s->x, 0, i, s->step, dtype, s->descending);
}

MX_INLINE void count_part(const pass *p, int64_t i, int64_t last, uint32_t *count, const bool items,
                          const mx_dtype dtype)
{
    const source s = source_of(p);
    const uint32_t shift = (uint32_t)p->shift, mask = p->radix - 1;
    for (; i < last; i++)
        count[get(&s, i, items, dtype) >> shift & mask]++;
}

MX_INLINE void move_part(const pass *p, int64_t i, int64_t last, uint32_t *next, const bool items, const mx_dtype dtype)
{
    const source s = source_of(p);
    const job j = *p->j;
    const uint32_t shift = (uint32_t)p->shift, mask = p->radix - 1;
    const int64_t first = p->first, to = p->to;
    item *into = p->into;
    for (; into && i < last; i++) {
        item one = get(&s, i, items, dtype);
        into[next[one >> shift & mask]++] = one;
    }
    for (; i < last; i++) {
        item one = get(&s, i, items, dtype);
        store_result(&j, first, to + next[one >> shift & mask]++ * j.e.inner, (uint32_t)one);
    }
}

/* Calls `function` with the source as a constant. */
#define OF_SOURCE(function, p, ...)                                                                                    \
    switch ((p)->from ? MX_DTYPES : (p)->j->x.dtype) {                                                                 \
    case MX_F32:                                                                                                       \
        function(p, __VA_ARGS__, false, MX_F32);                                                                       \
        break;                                                                                                         \
    case MX_BF16:                                                                                                      \
        function(p, __VA_ARGS__, false, MX_BF16);                                                                      \
        break;                                                                                                         \
    case MX_I32:                                                                                                       \
        function(p, __VA_ARGS__, false, MX_I32);                                                                       \
        break;                                                                                                         \
    case MX_I8:                                                                                                        \
        function(p, __VA_ARGS__, false, MX_I8);                                                                        \
        break;                                                                                                         \
    case MX_U8:                                                                                                        \
        function(p, __VA_ARGS__, false, MX_U8);                                                                        \
        break;                                                                                                         \
    default:                                                                                                           \
        function(p, __VA_ARGS__, true, MX_U8);                                                                         \
    }

static void radix_pass(const pass *p)
{
    uint32_t count[PARTS][WIDE_RADIX];
    int64_t n = p->j->e.n;
#pragma omp parallel for schedule(static) if (p->parts > 1)
    for (int k = 0; k < p->parts; k++) {
        int64_t first, last;
        part_of(n, p->parts, k, &first, &last);
        memset(count[k], 0, p->radix * sizeof **count);
        OF_SOURCE(count_part, p, first, last, count[k])
    }
    uint32_t next = 0;
    for (uint32_t digit = 0; digit < p->radix; digit++)
        for (int k = 0; k < p->parts; k++) {
            uint32_t own = count[k][digit];
            count[k][digit] = next;
            next += own;
        }
#pragma omp parallel for schedule(static) if (p->parts > 1)
    for (int k = 0; k < p->parts; k++) {
        int64_t first, last;
        part_of(n, p->parts, k, &first, &last);
        OF_SOURCE(move_part, p, first, last, count[k])
    }
}

MX_INLINE void collect_bits(const pass *p, int64_t i, int64_t last, uint64_t *differ, const bool items,
                            const mx_dtype dtype)
{
    const source s = source_of(p);
    const item first = get(&s, 0, items, dtype);
    uint64_t all = 0;
    for (; i < last; i++)
        all |= first ^ get(&s, i, items, dtype);
    *differ |= all;
}

/* The bits in which one of the elements differs from the first. */
static uint64_t differing_bits(const pass *p)
{
    uint64_t all = 0;
#pragma omp parallel for schedule(static) reduction(| : all) if (p->parts > 1)
    for (int k = 0; k < p->parts; k++) {
        int64_t first, last;
        uint64_t differ = 0;
        part_of(p->j->e.n, p->parts, k, &first, &last);
        OF_SOURCE(collect_bits, p, first, last, &differ)
        all |= differ;
    }
    return all;
}

/* Sorts by the digits that differ, from the elements or items that `p` begins with to the results or, with `as_items`,
 * to items, which are returned; between them, they are in a and b in turn. */
static item *radix_sort(pass p, item *a, item *b, bool as_items)
{
    int64_t n = p.j->e.n;
    int bits = p.j->digits == 4 && n >= WIDE_FROM && n <= WIDE_TO ? 11 : 8, passes = 0, shifts[4];
    uint64_t differ = differing_bits(&p);
    p.radix = bits == 11 ? WIDE_RADIX : RADIX;
    for (int shift = 32; shift < 32 + 8 * p.j->digits; shift += bits)
        if (differ >> shift & (p.radix - 1))
            shifts[passes++] = shift;
    if (passes == 0)
        shifts[passes++] = 32;
    for (int k = 0; k < passes; k++) {
        p.shift = shifts[k];
        p.into = k + 1 < passes || as_items ? a : NULL;
        radix_pass(&p);
        p.from = a;
        a = b;
        b = (item *)p.from;
    }
    return (item *)p.from;
}

static void insertion_sort(item *items, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        insert(items, i, items[i]);
}

/* Sorts a line of elements of 8 bytes from `first` on, by the lower half of their keys and then by the upper one; ties
 * stay in their order. The scratch memory is items[0 .. 2 n) and n ids behind it. */
static item *sort_wide(const job *j, int64_t first, item *items, int parts)
{
    int64_t n = j->e.n;
    uint32_t *ids = (uint32_t *)(items + 2 * n);
    item *sorted = items;
    for (int64_t i = 0; i < n; i++)
        ids[i] = (uint32_t)i;
    for (int half = 0; half < 2; half++) {
        for (int64_t i = 0; i < n; i++)
            items[i] = wide_key_of(j, first + ids[i] * j->e.inner) >> 32 * half << 32 | (uint64_t)i;
        if (n <= SHORT)
            insertion_sort(items, n);
        else
            sorted = radix_sort((pass){.j = j, .from = items, .parts = parts}, items + n, items, true);
        for (int64_t i = 0; i < n; i++)
            sorted[i] = ids[(uint32_t)sorted[i]];
        for (int64_t i = 0; i < n; i++)
            ids[i] = (uint32_t)sorted[i];
    }
    return sorted;
}

/* ---- lines ---- */

static int64_t line_start(const job *j, int64_t line)
{
    return line / j->e.inner * j->e.n * j->e.inner + line % j->e.inner;
}

/* The place of the first result of a line. */
static int64_t result_start(const job *j, int64_t line)
{
    return line / j->e.inner * j->k * j->e.inner + line % j->e.inner;
}

/* Writes the first k items of a line and their values. */
static void store_line(const job *j, int64_t line, const item *items)
{
    for (int64_t i = 0; i < j->k; i++)
        store_result(j, line_start(j, line), result_start(j, line) + i * j->e.inner, (uint32_t)items[i]);
}

static void sort_line(const job *j, int64_t line, item *items, int parts)
{
    int64_t first = line_start(j, line), n = j->e.n;
    if (j->wide) {
        store_line(j, line, sort_wide(j, first, items, parts));
    } else if (n <= SHORT) {
        load_items(j, first, items);
        insertion_sort(items, n);
        store_line(j, line, items);
    } else {
        pass p = {.j = j, .first = first, .to = result_start(j, line), .parts = parts};
        const item *sorted = radix_sort(p, items, items + n, j->k < n);
        if (j->k < n)
            store_line(j, line, sorted);
    }
}

/* The best elements of a line so far, in their order. */
typedef struct best_list {
    item items[LIST];
    int64_t k, found;
} best_list;

/* Whether element `one` is among the k best so far, which then change. */
static bool keep(best_list *list, item one)
{
    bool full = list->found >= list->k;
    if (full && one > list->items[list->k - 1])
        return false;
    insert(list->items, full ? list->k - 1 : list->found, one);
    list->found += !full;
    return list->found == list->k;
}

static void select_integers(const job *j, const void *x, best_list *list)
{
    for (int64_t i = 0; i < j->e.n; i++)
        keep(list, item_of(x, 0, i, 1, j->x.dtype, j->descending));
}

/* The k parts of the line whose best elements are best have one of the k best at least. So only parts with as good a
 * best element are read again. */
static void select_floats(const job *j, const void *x, best_list *list)
{
    enum { AT_ONCE = 128 };
    const mx_sort_paths *paths = mx_kernels_current()->sort;
    const mx_dtype dtype = j->x.dtype;
    int64_t n = j->e.n, part = mx_ceil_div(n, MX_MOST_PARTS * MX_PART_UNIT) * MX_PART_UNIT;
    int32_t keys[MX_MOST_PARTS], ids[AT_ONCE];
    int32_t bound = paths->best_of_parts(x, dtype, n, part, j->k, !j->descending, keys);
    for (int64_t p = 0; p * part < n; p++)
        for (int64_t i = p * part; keys[p] > bound && i < mx_min(n, (p + 1) * part); i += AT_ONCE) {
            int64_t end = mx_min(mx_min(n, (p + 1) * part), i + AT_ONCE);
            int64_t found = paths->above(x, dtype, i, end, bound, !j->descending, ids);
            for (int64_t f = 0; f < found; f++)
                if (keep(list, item_of(x, 0, ids[f], 1, dtype, j->descending)))
                    bound = mx_order_key(x, (uint32_t)list->items[j->k - 1], dtype, !j->descending);
        }
}

/* Keeps the k best of the line so far in a sorted list. `copy` has room for a line. */
static void select_line(const job *j, int64_t line, void *copy)
{
    best_list list = {.k = j->k};
    size_t bytes = mx_dtype_bytes(j->x.dtype);
    const char *x = (const char *)j->x.data + line_start(j, line) * (int64_t)bytes;
    if (j->e.inner > 1) {
        for (int64_t i = 0; i < j->e.n; i++)
            memcpy((char *)copy + i * (int64_t)bytes, x + i * j->e.inner * (int64_t)bytes, bytes);
        x = copy;
    }
    if (mx_dtype_is_integer(j->x.dtype))
        select_integers(j, x, &list);
    else
        select_floats(j, x, &list);
    store_line(j, line, list.items);
}

static bool has_short_lines(const job *j)
{
    return j->e.inner == 1 && j->k <= MX_BEST_K && j->e.n <= MX_BEST_N && 2 * j->k <= j->e.n &&
           (j->x.dtype == MX_F32 || j->x.dtype == MX_BF16);
}

/* The best of many short lines. */
static void select_short(const job *j)
{
    enum { LINES = 64 };
    int64_t lines = j->e.outer, n = j->e.n, bytes = (int64_t)j->bytes;
#pragma omp parallel for schedule(static) if (lines * n >= MX_PARALLEL_FROM / 4)
    for (int64_t line = 0; line < lines; line += LINES)
        mx_kernels_current()->sort->best((const char *)j->x.data + line * n * bytes, j->x.dtype,
                                         mx_min(LINES, lines - line), n, j->k, !j->descending,
                                         j->values ? (char *)j->values + line * j->k * bytes : NULL,
                                         j->ids ? j->ids + line * j->k : NULL);
}

/* Threads share the lines, or each long line if there are few. */
static mx_status run(job *j)
{
    int64_t lines = j->e.outer * j->e.inner, n = j->e.n;
    int threads = omp_get_max_threads();
    j->bytes = mx_dtype_bytes(j->x.dtype);
    j->wide = j->bytes == 8;
    bool selects = j->k <= LIST && 4 * j->k <= n && !j->wide, alone = !selects && lines < threads && n >= PARTS_FROM;
    j->digits = j->wide ? 4 : (int)j->bytes;
    if (lines * j->k == 0)
        return MX_OK;
    if (has_short_lines(j)) {
        select_short(j);
        return MX_OK;
    }
    if (alone || lines * n < MX_PARALLEL_FROM / 4)
        threads = 1;
    int64_t items = selects ? (j->e.inner > 1 ? (n + 1) / 2 : 0) : 2 * n + (j->wide ? (n + 1) / 2 : 0),
            bytes = threads * items * (int64_t)sizeof(item);
    item *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t line = 0; line < lines; line++) {
        item *own = scratch + omp_get_thread_num() * items;
        if (selects)
            select_line(j, line, own);
        else
            sort_line(j, line, own, alone ? PARTS : 1);
    }
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

mx_status mx_sort(mx_array x, mx_extent e, bool descending, void *values, int32_t *ids)
{
    return run(&(job){.x = x, .e = e, .k = e.n, .descending = descending, .values = values, .ids = ids});
}

mx_status mx_topk(mx_array x, mx_extent e, int64_t k, bool smallest, void *values, int32_t *ids)
{
    return run(&(job){.x = x, .e = e, .k = k, .descending = !smallest, .values = values, .ids = ids});
}
