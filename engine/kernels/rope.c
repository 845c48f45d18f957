#include "kernels/rope.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tables of the positions 0 .. positions - 1, kept for the life of the program: a model uses one or two. */
typedef struct angle_table {
    mx_rope_frequencies frequencies;
    int64_t positions;
    float *angles;
} angle_table;

enum { TABLES = 4, TABLE_BYTES_MOST = 64 << 20 };
static angle_table tables[TABLES];
static int next_table;

static bool same_frequencies(const mx_rope_frequencies *a, const mx_rope_frequencies *b)
{
    if (a->factor != b->factor || a->dims != b->dims || a->interleaved != b->interleaved || !a->table != !b->table)
        return false;
    if (a->table)
        return memcmp(a->table, b->table, (size_t)a->dims * sizeof *a->table) == 0;
    return a->theta == b->theta;
}

double mx_rope_frequency(const mx_rope_frequencies *f, int64_t i)
{
    if (f->table)
        return (double)f->table[i] + (double)f->table[f->dims / 2 + i];
    return pow(f->theta, -2.0 * (double)i / (double)f->dims);
}

static int64_t row_floats(const mx_rope_frequencies *f) { return f->interleaved ? 2 * f->dims : f->dims; }

static void fill_row(const mx_rope_frequencies *f, double position, float *row)
{
    int64_t pairs = f->dims / 2;
    for (int64_t i = 0; i < pairs; i++) {
        double angle = position * mx_rope_frequency(f, i);
        float c = (float)(f->factor * cos(angle)), s = (float)(f->factor * sin(angle));
        if (f->interleaved) {
            row[2 * i] = row[2 * i + 1] = c;
            row[f->dims + 2 * i] = -s;
            row[f->dims + 2 * i + 1] = s;
        } else {
            row[i] = c;
            row[pairs + i] = s;
        }
    }
}

/* A kept table that reaches `positions`, made now if there is none. */
static mx_status find_table(const mx_rope_frequencies *f, int64_t positions, const float **angles)
{
    angle_table *table = NULL;
    for (int t = 0; t < TABLES && !table; t++)
        if (tables[t].angles && same_frequencies(&tables[t].frequencies, f))
            table = &tables[t];
    if (table && table->positions >= positions) {
        *angles = table->angles;
        return MX_OK;
    }
    int64_t reach = 64;
    while (reach < positions)
        reach *= 2;
    int64_t floats = row_floats(f), own = f->table ? f->dims : 0;
    float *made = aligned_alloc(64, ((size_t)(reach * floats + own) * sizeof *made + 63) / 64 * 64);
    if (!made)
        return mx_fail(MX_ERR_MEMORY, "rope: out of memory for the angles of %lld positions", (long long)reach);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < reach; p++)
        fill_row(f, (double)p, made + p * floats);
    if (!table) {
        table = &tables[next_table];
        next_table = (next_table + 1) % TABLES;
    }
    float *old = table->angles;
    *table = (angle_table){.frequencies = *f, .positions = reach, .angles = made};
    if (own) /* behind the angles: the caller's does not last */
        table->frequencies.table = memcpy(made + reach * floats, f->table, (size_t)own * sizeof *made);
    free(old);
    *angles = made;
    return MX_OK;
}

static int64_t position_of(const mx_rope *r, int64_t t)
{
    int64_t p = t % r->period;
    return r->offset + (r->positions ? r->positions[p] : p);
}

static void rotate(const mx_rope *r, const float *angles, const int64_t *row)
{
    int64_t part_bytes = r->frequencies.dims / 2 * (int64_t)mx_dtype_bytes(r->dtype); /* one component of each pair */
    int64_t head_bytes = r->head_dim * (int64_t)mx_dtype_bytes(r->dtype), token_values = r->heads * r->head_dim;
    bool stream = part_bytes % 64 == 0 && head_bytes % 64 == 0 && (uintptr_t)r->y % 64 == 0 && r->x != r->y &&
                  mx_should_stream(2 * r->tokens * r->heads * head_bytes);
    const mx_rope_paths *path = mx_kernels_current()->rope;
    int64_t at_once = 1 + 8192 / (token_values + 1), pieces = (r->tokens + at_once - 1) / at_once;
#pragma omp parallel for schedule(static) if (r->tokens * token_values > 16384)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t last = (p + 1) * at_once;
        path->rotate(&(mx_rope_tokens){.rope = r,
                                       .angles = angles,
                                       .row = row,
                                       .first = p * at_once,
                                       .last = last < r->tokens ? last : r->tokens,
                                       .stream = stream});
    }
}

mx_status mx_rope_run(const mx_rope *r)
{
    if (r->tokens == 0 || r->heads == 0 || r->head_dim == 0)
        return MX_OK;
    int64_t period = r->period < r->tokens ? r->period : r->tokens;
    int64_t lowest = position_of(r, 0), highest = lowest;
    for (int64_t t = 1; t < period; t++) {
        int64_t p = position_of(r, t);
        lowest = p < lowest ? p : lowest;
        highest = p > highest ? p : highest;
    }
    int64_t floats = row_floats(&r->frequencies);
    bool keep = lowest >= 0 && highest < TABLE_BYTES_MOST / ((int64_t)sizeof(float) * floats);
    int64_t row_bytes = r->tokens * (int64_t)sizeof(int64_t);
    int64_t angle_bytes = keep ? 0 : period * floats * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(row_bytes + angle_bytes, &scratch));
    int64_t *row = scratch;
    float *own = (float *)(row + r->tokens);
    const float *angles = own;
    mx_status status = keep ? find_table(&r->frequencies, highest + 1, &angles) : MX_OK;
    if (status == MX_OK) {
        for (int64_t t = 0; t < period && !keep; t++)
            fill_row(&r->frequencies, (double)position_of(r, t), own + t * floats);
        for (int64_t t = 0; t < r->tokens; t++)
            row[t] = keep ? position_of(r, t) : t % period;
        rotate(r, angles, row);
    }
    mx_pool_free(scratch, row_bytes + angle_bytes);
    return status;
}
