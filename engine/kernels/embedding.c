#include "kernels/embedding.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

int64_t mx_embedding_find_bad(const int32_t *ids, int64_t n, int64_t vocab)
{
    enum { PIECE = 4096 };
    int64_t found = n;
#pragma omp parallel for schedule(static) reduction(min : found) if (n > 16 * PIECE)
    for (int64_t from = 0; from < n; from += PIECE) {
        int64_t to = from + PIECE < n ? from + PIECE : n;
        if (mx_kernels_current()->moves->within(ids + from, to - from, vocab))
            continue;
        int64_t i = from;
        while (ids[i] >= 0 && ids[i] < vocab)
            i++;
        found = i < found ? i : found;
    }
    return found < n ? found : -1;
}

/* The row of an id in a table of `vocab` rows from id `first` on; -1: it is not there. */
static inline int64_t row_of(int32_t id, int64_t first, int64_t vocab)
{
    int64_t row = id - first;
    return row >= 0 && row < vocab ? row : -1;
}

void mx_embedding_gather(const mx_embedding *e)
{
    int64_t table_row = e->width * (int64_t)mx_dtype_bytes(e->table_dtype);
    int64_t out_row = e->width * (int64_t)mx_dtype_bytes(e->out_dtype);
    bool plain = e->table_dtype == e->out_dtype && e->scale == 1.0f;
    const mx_row_paths *path = mx_kernels_current()->rows;
#pragma omp parallel for schedule(static) if (e->tokens * e->width > 32768)
    for (int64_t t = 0; t < e->tokens; t++) {
        int64_t row = row_of(e->ids[t], e->first, e->vocab);
        const char *from = (const char *)e->table + row * table_row;
        char *to = (char *)e->out + t * out_row;
        if (row < 0)
            memset(to, 0, (size_t)out_row);
        else if (plain)
            memcpy(to, from, (size_t)out_row);
        else
            path->convert(to, e->out_dtype, from, e->table_dtype, e->scale, e->width);
    }
}

/* The ids that occur more than OFTEN times, and the sums of their rows. */
enum { OFTEN = 256 };

typedef struct often {
    int64_t n, bytes;
    int32_t *slot;  /* (vocab): index of a row among the n, or -1; NULL: no id occurs often */
    int32_t *row;   /* (n) */
    int32_t *added; /* (threads, n): rows in `run` */
    float *run;     /* (n, width): of at most OFTEN tokens */
    double *sum;    /* (n, width): of the full runs */
} often;

/* Finds them. The one block that *o needs is o->slot; NULL, without an error, where there are none. */
static mx_status find_often(const mx_embedding_sum *e, int threads, often *o)
{
    *o = (often){0};
    if (e->tokens <= OFTEN)
        return MX_OK;
    int64_t counts_bytes = e->vocab * (int64_t)sizeof(int32_t);
    int32_t *counts;
    MX_TRY(mx_pool_alloc(counts_bytes, (void **)&counts));
    memset(counts, 0, (size_t)counts_bytes);
    for (int64_t t = 0; t < e->tokens; t++) {
        int64_t row = row_of(e->ids[t], e->first, e->vocab);
        o->n += row >= 0 && counts[row] <= OFTEN && ++counts[row] > OFTEN;
    }
    mx_status status = MX_OK;
    if (o->n > 0) {
        int64_t rows = o->n * e->width;
        o->bytes = rows * (int64_t)(sizeof *o->sum + sizeof *o->run) +
                   (e->vocab + (1 + threads) * o->n) * (int64_t)sizeof(int32_t);
        status = mx_pool_alloc(o->bytes, (void **)&o->sum);
    }
    if (status == MX_OK && o->n > 0) {
        memset(o->sum, 0, (size_t)o->bytes);
        o->run = (float *)(o->sum + o->n * e->width);
        o->row = (int32_t *)(o->run + o->n * e->width);
        o->added = o->row + o->n;
        o->slot = o->added + threads * o->n;
        int32_t n = 0;
        for (int64_t row = 0; row < e->vocab; row++) {
            o->slot[row] = counts[row] > OFTEN ? n : -1;
            if (counts[row] > OFTEN)
                o->row[n++] = (int32_t)row;
        }
    }
    mx_pool_free(counts, counts_bytes);
    return status;
}

/* Adds a run to its sum and resets it. */
static void end_run(float *run, double *sum, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        sum[j] += run[j];
        run[j] = 0;
    }
}

/* Does columns [first, last) of the rows with row % groups == group. */
static void add_columns(const mx_embedding_sum *e, const often *o, int32_t *added, int64_t groups, int64_t group,
                        int64_t first, int64_t last)
{
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t bytes = (int64_t)mx_dtype_bytes(e->dtype), n = last - first;
    for (int64_t t = 0; t < e->tokens; t++) {
        int64_t row = row_of(e->ids[t], e->first, e->vocab);
        if (row < 0 || (groups > 1 && row % groups != group))
            continue;
        int32_t slot = o->slot ? o->slot[row] : -1;
        int64_t to = (slot < 0 ? row : slot) * e->width + first;
        path->add((slot < 0 ? e->grad : o->run) + to, MX_F32, (const char *)e->dy + (t * e->width + first) * bytes,
                  e->dtype, e->scale, n);
        if (added && slot >= 0 && ++added[slot] == OFTEN) {
            end_run(o->run + to, o->sum + to, n);
            added[slot] = 0;
        }
    }
    for (int64_t slot = 0; slot < o->n; slot++) {
        if (groups > 1 && o->row[slot] % groups != group)
            continue;
        double *sum = o->sum + slot * e->width + first;
        float *grad = e->grad + o->row[slot] * e->width + first;
        end_run(o->run + slot * e->width + first, sum, n);
        for (int64_t j = 0; j < n; j++)
            grad[j] = (float)(grad[j] + sum[j]);
    }
}

/* Threads share the elements of the gradient by column and by id, never by token. */
mx_status mx_embedding_add(const mx_embedding_sum *e)
{
    enum { COLUMNS = 256 };
    often o;
    MX_TRY(find_often(e, omp_get_max_threads(), &o));
#pragma omp parallel if (e->tokens * e->width > 32768)
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        int64_t slices = (e->width + COLUMNS - 1) / COLUMNS;
        slices = slices < threads ? slices : threads;
        int64_t groups = slices > 0 ? threads / slices : 0; /* threads beyond slices * groups have nothing to do */
        if (groups > 0 && me < slices * groups) {
            int64_t slice = me % slices, group = me / slices;
            int64_t units = (e->width + 15) / 16; /* slices begin at cache lines */
            int64_t first = slice * units / slices * 16, last = (slice + 1) * units / slices * 16;
            add_columns(e, &o, o.added ? o.added + me * o.n : NULL, groups, group, first,
                        last < e->width ? last : e->width);
        }
    }
    if (o.sum)
        mx_pool_free(o.sum, o.bytes);
    return MX_OK;
}
