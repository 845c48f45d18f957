#include "transport/stream.h"

#include "kernels/elementwise.h"

#include <immintrin.h>
#include <string.h>

enum { CAST_BLOCK = 16 << 10 }; /* few enough for mx_cast to stay on one thread */

mx_block mx_block_whole(const mx_tensor *t)
{
    int64_t count = mx_count(t);
    return (mx_block){.data = mx_address(t), .dtype = t->dtype, .rows = 1, .row = count, .stride = count};
}

mx_block mx_block_split(const mx_tensor *t, int dim, int parts)
{
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < dim; d++)
        outer *= t->shape.size[d];
    for (int d = dim + 1; d < t->shape.n_dims; d++)
        inner *= t->shape.size[d];
    int64_t size = t->shape.size[dim], row = mx_part_size(size, parts, 0) * inner;
    mx_block block = {.data = mx_address(t),
                      .dtype = t->dtype,
                      .rows = outer,
                      .row = row,
                      .stride = size * inner,
                      .part = row,
                      .full = size % parts,
                      .lack = size % parts ? inner : 0};
    if (parts == 1) {
        block.row *= outer;
        block.stride = block.row;
        block.rows = 1;
    }
    return block;
}

/* The number of elements of a row of part p that are in memory. */
static int64_t row_of(const mx_block *b, int p) { return b->row - (p >= b->full ? b->lack : 0); }

mx_block mx_block_alone(const mx_tensor *t, const mx_block *whole, int p)
{
    if (whole->lack == 0)
        return mx_block_whole(t);
    mx_block block = *whole;
    block.data = mx_address(t);
    block.dtype = t->dtype;
    block.stride = row_of(whole, p);
    block.part = 0;
    block.full = p < whole->full;
    return block;
}

static int64_t start_of(const mx_block *b, int p) { return p * b->part - (p > b->full ? (p - b->full) * b->lack : 0); }

mx_block mx_block_part(const mx_block *whole, int p)
{
    mx_block block = *whole;
    block.data += start_of(whole, p) * (int64_t)mx_dtype_bytes(whole->dtype);
    block.full = p < whole->full;
    return block;
}

/* Stores 16 bytes at a time, which every x86-64 can. Wider stores would not fill a cache line faster. */
static void copy_past_caches(void *to, const void *from, size_t bytes)
{
    size_t head = (size_t)(-(uintptr_t)to) % 64;
    if (bytes < 4096) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    char *y = (char *)to + head;
    const char *x = (const char *)from + head;
    size_t lines = (bytes - head) / 64;
    for (size_t i = 0; i < lines; i++, x += 64, y += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)x), b = _mm_loadu_si128((const __m128i *)(x + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(x + 32)), d = _mm_loadu_si128((const __m128i *)(x + 48));
        _mm_stream_si128((__m128i *)y, a);
        _mm_stream_si128((__m128i *)(y + 16), b);
        _mm_stream_si128((__m128i *)(y + 32), c);
        _mm_stream_si128((__m128i *)(y + 48), d);
    }
    memcpy(y, x, (bytes - head) % 64);
}

void mx_stream_fence(void) { _mm_sfence(); }

static void convert(mx_dtype from_dtype, const void *from, mx_dtype to_dtype, void *to, int64_t n, bool past_caches)
{
    size_t from_size = mx_dtype_bytes(from_dtype), to_size = mx_dtype_bytes(to_dtype);
    if (from_dtype == to_dtype) {
        if (past_caches)
            copy_past_caches(to, from, (size_t)n * to_size);
        else
            memcpy(to, from, (size_t)n * to_size);
        return;
    }
    for (int64_t i = 0; i < n; i += CAST_BLOCK) {
        mx_array x = {(char *)from + (size_t)i * from_size, from_dtype},
                 y = {(char *)to + (size_t)i * to_size, to_dtype};
        mx_cast(x, y, n - i < CAST_BLOCK ? n - i : CAST_BLOCK);
    }
}

/* A position in a stream. */
typedef struct place {
    const mx_block *block;
    int64_t row, column;
} place;

static place find_place(const mx_stream *s, int64_t first)
{
    place p = {.block = s->blocks};
    while (first >= p.block->rows * p.block->row && p.block < s->blocks + s->n - 1) {
        first -= p.block->rows * p.block->row;
        p.block++;
    }
    p.row = p.block->row ? first / p.block->row : 0;
    p.column = p.block->row ? first % p.block->row : 0;
    return p;
}

static char *address(const place *p, int part)
{
    const mx_block *b = p->block;
    return b->data + (p->row * b->stride + start_of(b, part) + p->column) * (int64_t)mx_dtype_bytes(b->dtype);
}

/* Elements before the next padding; 0: the position is in padding. */
static int64_t before_padding(const place *p, int part)
{
    int64_t left = row_of(p->block, part) - p->column;
    return left > 0 ? left : 0;
}

/* The number of contiguous elements of a part, or of padding, from the position on, at most n; moves the position
 * behind them. 0 if a block is empty. */
static int64_t next_run(place *p, int part, int64_t n)
{
    int64_t real = before_padding(p, part), run = real > 0 ? real : p->block->row - p->column;
    if (run > n)
        run = n;
    p->column += run;
    if (p->column == p->block->row) {
        p->column = 0;
        p->row++;
    }
    if (p->row >= p->block->rows || p->block->row == 0) {
        p->row = 0;
        p->block++;
    }
    return run;
}

void mx_stream_read(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, void *to)
{
    place p = find_place(s, first);
    while (n > 0) {
        const char *from = before_padding(&p, part) > 0 ? address(&p, part) : NULL;
        mx_dtype dtype = p.block->dtype;
        int64_t run = next_run(&p, part, n);
        if (from)
            convert(dtype, from, wire, to, run, false);
        else
            memset(to, 0, (size_t)run * mx_dtype_bytes(wire));
        to = (char *)to + run * (int64_t)mx_dtype_bytes(wire);
        n -= run;
    }
}

void mx_stream_write(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, const void *from)
{
    place p = find_place(s, first);
    while (n > 0) {
        char *to = before_padding(&p, part) > 0 ? address(&p, part) : NULL;
        mx_dtype dtype = p.block->dtype;
        int64_t run = next_run(&p, part, n);
        if (to)
            convert(wire, from, dtype, to, run, s->past_caches);
        from = (const char *)from + run * (int64_t)mx_dtype_bytes(wire);
        n -= run;
    }
}

void *mx_stream_find(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire)
{
    place p = find_place(s, first);
    if (p.block->dtype != wire || before_padding(&p, part) < n)
        return NULL;
    return address(&p, part);
}
