/* Intervals of keys from segments: documents that lie one after the other. */
#include "core/pool.h"
#include "kernels/attention.h"

#include <stdlib.h>

/* Keys first to before end have this segment. */
typedef struct run {
    int32_t segment, first, end;
} run;

static int by_segment(const void *a, const void *b)
{
    const run *x = a, *y = b;
    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* The runs of a sequence by their segments; returns their number. */
static int64_t find_runs(const int32_t *segments, int64_t keys, run *runs)
{
    int64_t n = 0;
    bool ascending = true;
    for (int64_t t = 0; t < keys; t++) {
        if (n == 0 || segments[t] != runs[n - 1].segment) {
            ascending = ascending && (n == 0 || segments[t] > runs[n - 1].segment);
            runs[n++] = (run){segments[t], (int32_t)t, (int32_t)t};
        }
        runs[n - 1].end = (int32_t)t + 1;
    }
    if (!ascending)
        qsort(runs, (size_t)n, sizeof *runs, by_segment);
    return n;
}

static void look_up(const int32_t *segments, int64_t queries, const run *runs, int64_t n, int32_t *intervals)
{
    static const run none = {0, 0, 0};
    const run *found = NULL;
    for (int64_t i = 0; i < queries; i++) {
        if (i == 0 || segments[i] != segments[i - 1]) {
            int64_t low = 0, high = n;
            while (low < high) {
                int64_t middle = (low + high) / 2;
                if (runs[middle].segment < segments[i])
                    low = middle + 1;
                else
                    high = middle;
            }
            found = low < n && runs[low].segment == segments[i] ? runs + low : &none;
        }
        intervals[2 * i] = found->first;
        intervals[2 * i + 1] = found->end;
    }
}

mx_status mx_attention_intervals(int64_t batch, int64_t queries, int64_t keys, const int32_t *q_segments,
                                 const int32_t *k_segments, int32_t *intervals, int64_t *second)
{
    void *data;
    int64_t bytes = keys * (int64_t)sizeof(run) + 1;
    *second = -1;
    MX_TRY(mx_pool_alloc(bytes, &data));
    run *runs = data;
    for (int64_t b = 0; b < batch && *second < 0; b++) {
        int64_t n = find_runs(k_segments + b * keys, keys, runs);
        for (int64_t i = 1; i < n && *second < 0; i++)
            if (runs[i].segment == runs[i - 1].segment)
                *second = b * keys + runs[i].first;
        look_up(q_segments + b * queries, queries, runs, n, intervals + 2 * b * queries);
    }
    mx_pool_free(data, bytes);
    return MX_OK;
}
