#include "checkpoint/chunk.h"

#include <string.h>

/* Iterates over the rows that two boxes share. A row is a range of the last dimension. */
typedef struct rows {
    int n_dims;
    int64_t low[MX_MAX_DIMS], size[MX_MAX_DIMS], at[MX_MAX_DIMS];
    int64_t length, count; /* elements of a row; rows */
} rows;

static rows shared_rows(const mx_chunk *a, const mx_chunk *b)
{
    rows r = {.n_dims = a->n_dims, .length = 1, .count = 1};
    for (int d = 0; d < a->n_dims; d++) {
        int64_t low = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t a_end = a->offset[d] + a->extent[d], b_end = b->offset[d] + b->extent[d];
        int64_t size = (a_end < b_end ? a_end : b_end) - low;
        r.low[d] = low;
        r.size[d] = size > 0 ? size : 0;
        if (d == a->n_dims - 1)
            r.length = r.size[d];
        else
            r.count *= r.size[d];
    }
    if (r.length == 0)
        r.count = 0;
    return r;
}

static void next_row(rows *r)
{
    for (int d = r->n_dims - 2; d >= 0; d--) {
        if (++r->at[d] < r->size[d])
            return;
        r->at[d] = 0;
    }
}

/* The row-major index in the chunk's box at which the row starts. */
static int64_t place(const mx_chunk *chunk, const rows *r)
{
    int64_t at = 0;
    for (int d = 0; d < chunk->n_dims; d++)
        at = at * chunk->extent[d] + r->low[d] + r->at[d] - chunk->offset[d];
    return at;
}

/* Finds the elements [*skip, *skip + length) of a row that both chunks contain; returns length. */
static int64_t clip(const mx_chunk *a, int64_t a_at, const mx_chunk *b, int64_t b_at, int64_t length, int64_t *skip)
{
    int64_t low = 0, high = length;
    if (a->first - a_at > low)
        low = a->first - a_at;
    if (b->first - b_at > low)
        low = b->first - b_at;
    if (a->first + a->count - a_at < high)
        high = a->first + a->count - a_at;
    if (b->first + b->count - b_at < high)
        high = b->first + b->count - b_at;
    *skip = low;
    return high > low ? high - low : 0;
}

bool mx_chunk_fits(const mx_chunk *chunk, const mx_shape *whole)
{
    int64_t count = 1;
    if (chunk->n_dims != whole->n_dims)
        return false;
    for (int d = 0; d < chunk->n_dims; d++) {
        if (chunk->offset[d] < 0 || chunk->extent[d] < 0 || chunk->offset[d] > whole->size[d] ||
            chunk->extent[d] > whole->size[d] - chunk->offset[d])
            return false;
        count *= chunk->extent[d]; /* no overflow: at most the count of an existing tensor */
    }
    return chunk->first >= 0 && chunk->count >= 0 && chunk->first <= count && chunk->count <= count - chunk->first;
}

int64_t mx_chunk_overlap(const mx_chunk *want, const mx_chunk *have, int64_t *from, int64_t *to)
{
    int64_t total = 0, skip;
    *from = *to = 0;
    rows r = shared_rows(want, have);
    for (int64_t i = 0; i < r.count; i++, next_row(&r)) {
        int64_t have_at = place(have, &r);
        int64_t length = clip(want, place(want, &r), have, have_at, r.length, &skip);
        if (length == 0)
            continue;
        if (total == 0)
            *from = have_at + skip;
        *to = have_at + skip + length;
        total += length;
    }
    return total;
}

void mx_chunk_copy(const mx_chunk *want, void *out, const mx_chunk *have, int64_t start, const void *values,
                   size_t element_bytes)
{
    int64_t skip;
    rows r = shared_rows(want, have);
    for (int64_t i = 0; i < r.count; i++, next_row(&r)) {
        int64_t want_at = place(want, &r), have_at = place(have, &r);
        int64_t length = clip(want, want_at, have, have_at, r.length, &skip);
        if (length > 0)
            memcpy((char *)out + (want_at + skip - want->first) * (int64_t)element_bytes,
                   (const char *)values + (have_at + skip - start) * (int64_t)element_bytes,
                   (size_t)length * element_bytes);
    }
}
