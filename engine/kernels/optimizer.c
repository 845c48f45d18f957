#include "kernels/optimizer.h"

#include "kernels/context.h"

/* The splitmix64 finaliser. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The elements from i on, before `last` at most, that are rounded by numbers that follow each other and have the same
 * upper half. Returns where they end. */
static int64_t next_run(const mx_rounding *r, int64_t i, int64_t last, mx_rounding_run *run)
{
    uint64_t place = (uint64_t)r->first + (uint64_t)i, number = (uint64_t)r->origin + place;
    uint64_t n = (uint64_t)(last - i);
    if (r->width != r->stride) {
        uint64_t width = (uint64_t)r->width, column = place % width;
        number = (uint64_t)r->origin + place / width * (uint64_t)r->stride + column;
        n = width - column < n ? width - column : n;
    }
    uint64_t left = ((uint64_t)1 << 32) - (uint32_t)number, key = mix(r->key + mix(number >> 32));
    n = left < n ? left : n;
    *run = (mx_rounding_run){(uint32_t)key, (uint32_t)(key >> 32), (uint32_t)number - (uint32_t)i};
    return i + (int64_t)n;
}

static bool is_stochastic(const mx_rounding *r, mx_array a) { return r->stochastic && mx_is_bf16(a.dtype); }

static void adamw_chunk(const mx_adamw *a, int64_t first, int64_t last)
{
    const mx_optimizer_paths *path = mx_kernels_current()->optimizer;
    if (!is_stochastic(&a->rounding, a->param) && !is_stochastic(&a->rounding, a->v)) {
        path->adamw(a, NULL, first, last);
        return;
    }
    for (int64_t i = first, end; i < last; i = end) {
        mx_rounding_run run;
        end = next_run(&a->rounding, i, last, &run);
        path->adamw(a, &run, i, end);
    }
}

static void sgd_chunk(const mx_sgd *s, int64_t first, int64_t last)
{
    const mx_optimizer_paths *path = mx_kernels_current()->optimizer;
    if (!is_stochastic(&s->rounding, s->param)) {
        path->sgd(s, NULL, first, last);
        return;
    }
    for (int64_t i = first, end; i < last; i = end) {
        mx_rounding_run run;
        end = next_run(&s->rounding, i, last, &run);
        path->sgd(s, &run, i, end);
    }
}

void mx_adamw_run(const mx_adamw *a, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        adamw_chunk(a, first, first + MX_CHUNK < n ? first + MX_CHUNK : n);
}

void mx_sgd_run(const mx_sgd *s, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        sgd_chunk(s, first, first + MX_CHUNK < n ? first + MX_CHUNK : n);
}
