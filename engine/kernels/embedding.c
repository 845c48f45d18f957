#include "kernels/embedding.h"

#include "core/cpu.h"

#include <omp.h>
#include <string.h>

static const mx_row_paths *const paths[MX_VECTOR_ISAS] = {&mx_rows_portable, &mx_rows_avx2, &mx_rows_avx512,
                                                          &mx_rows_avx512_bf16};

const mx_row_paths *mx_rows_current(void) { return paths[mx_isa_vectors()]; }

int64_t mx_embedding_find_bad(const int32_t *ids, int64_t n, int64_t vocab)
{
    for (int64_t from = 0; from < n; from += 1024) {
        int64_t to = from + 1024 < n ? from + 1024 : n;
        int bad = 0;
        for (int64_t i = from; i < to; i++)
            bad |= ids[i] < 0 || ids[i] >= vocab;
        for (int64_t i = from; bad && i < to; i++)
            if (ids[i] < 0 || ids[i] >= vocab)
                return i;
    }
    return -1;
}

void mx_embedding_gather(const mx_embedding *e)
{
    int64_t table_row = e->width * (int64_t)mx_dtype_bytes(e->table_dtype);
    int64_t out_row = e->width * (int64_t)mx_dtype_bytes(e->out_dtype);
    bool plain = e->table_dtype == e->out_dtype && e->scale == 1.0f;
    const mx_row_paths *path = mx_rows_current();
#pragma omp parallel for schedule(static) if (e->tokens * e->width > 32768)
    for (int64_t t = 0; t < e->tokens; t++) {
        const char *from = (const char *)e->table + e->ids[t] * table_row;
        char *to = (char *)e->out + t * out_row;
        if (plain)
            memcpy(to, from, (size_t)out_row);
        else
            path->convert(to, e->out_dtype, from, e->table_dtype, e->scale, e->width);
    }
}

/* The elements of the gradient are dealt out by column and by id, never by token. */
void mx_embedding_add(float *grad, const int32_t *ids, const void *dy, mx_dtype dtype, float scale, int64_t tokens,
                      int64_t width)
{
    enum { COLUMNS = 256 };
    int64_t bytes = (int64_t)mx_dtype_bytes(dtype);
    const mx_row_paths *path = mx_rows_current();
#pragma omp parallel if (tokens * width > 32768)
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        int64_t slices = (width + COLUMNS - 1) / COLUMNS;
        slices = slices < threads ? slices : threads;
        int64_t groups = slices > 0 ? threads / slices : 0; /* threads beyond slices * groups have nothing to do */
        if (groups > 0 && me < slices * groups) {
            int64_t slice = me % slices, group = me / slices;
            int64_t units = (width + 15) / 16; /* slices begin at cache lines */
            int64_t first = slice * units / slices * 16, last = (slice + 1) * units / slices * 16;
            last = last < width ? last : width;
            for (int64_t t = 0; t < tokens; t++)
                if (groups == 1 || ids[t] % groups == group)
                    path->add(grad + ids[t] * width + first, MX_F32, (const char *)dy + (t * width + first) * bytes,
                              dtype, scale, last - first);
        }
    }
}
