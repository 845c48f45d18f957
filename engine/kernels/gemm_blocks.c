/* What the packed product reads from the machine: block sizes from its caches, scratch memory from its pages. */
#define _GNU_SOURCE
#include "kernels/gemm_internal.h"

#include "kernels/context.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static mx_gemm_blocks chosen; /* mc == 0: none */

void mx_gemm_set_blocks(const mx_gemm_blocks *blocks) { chosen = blocks ? *blocks : (mx_gemm_blocks){0}; }

static int64_t between(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

mx_gemm_blocks mx_gemm_blocks_of(mx_isa isa)
{
    if (chosen.mc > 0)
        return chosen;
    /* Measured: half of the second-level cache for A, an eighth of the third for B. */
    const mx_micro *u = mx_kernels_of(isa)->micro;
    int64_t bytes_of_k = u->k_words * 4;
    mx_gemm_blocks blocks;
    blocks.kc = u->k_words * u->k_group;
    blocks.mc = between(mx_cpu_l2_bytes() / 2 / bytes_of_k, 8 * u->mr, 512) / u->mr * u->mr;
    blocks.nc = between(mx_cpu_l3_bytes() / 8 / bytes_of_k, 512, 4096) / u->nr * u->nr;
    return blocks;
}

__attribute__((constructor)) static void read_environment(void)
{
    long long mc, nc, kc;
    const char *text = getenv("MXLUA_GEMM_BLOCKS");
    if (text && sscanf(text, "%lld,%lld,%lld", &mc, &nc, &kc) == 3 && mc > 0 && nc > 0 && kc > 0)
        chosen = (mx_gemm_blocks){mc, nc, kc};
}

/* ---- scratch ---- */

enum { HUGE_PAGE = 2 << 20 };

typedef struct scratch {
    struct scratch *next;
    void *data;
    int64_t bytes;
} scratch;

static scratch *all; /* of every thread that ever asked */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local scratch *mine;

static scratch *new_scratch(void)
{
    scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_mutex_lock(&all_lock);
    s->next = all;
    all = s;
    pthread_mutex_unlock(&all_lock);
    return s;
}

void *mx_gemm_scratch(int64_t bytes)
{
    if (!mine)
        mine = new_scratch();
    if (!mine)
        return NULL;
    if (mine->bytes >= bytes)
        return mine->data;
    /* Packed blocks are walked end to end by every core: huge pages save a TLB miss every 4 KiB. */
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    free(mine->data);
    mine->data = aligned_alloc(HUGE_PAGE, (size_t)bytes);
    mine->bytes = mine->data ? bytes : 0;
    if (mine->data)
        madvise(mine->data, (size_t)bytes, MADV_HUGEPAGE); /* an advice: refused, it is slower, not wrong */
    return mine->data;
}

__attribute__((destructor)) static void free_scratch(void)
{
    while (all) {
        scratch *s = all;
        all = s->next;
        free(s->data);
        free(s);
    }
}
