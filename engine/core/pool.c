#define _GNU_SOURCE
#include "core/pool.h"

#include "core/arena.h"
#include "core/memory.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A block starts with a header of one cache line; the rest is the caller's. If other ranks map this rank's arena, all
 * except small blocks are in it. Otherwise small blocks come from malloc, and large ones are separate mappings, so that
 * trimming returns them to the system. */
typedef struct mx_block {
    int64_t bytes; /* usable, after the header */
    struct mx_block *next;
} mx_block;

enum {
    HEADER_BYTES = 64,
    MAPPED_FROM = 1 << 20,
    HUGE_PAGE = 2 << 20,
    STEPS = 8, /* bins per power of two */
    BINS = 64 * STEPS,
    PROGRAM_BYTES = 64 << 20, /* about what the program, its libraries and Lua's values take beside tensors */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mx_block *bins[BINS];
static mx_pool_stats stats;

/* Blocks of bin b have at least 2^(b / STEPS) * (1 + (b % STEPS) / STEPS) bytes. */
static int bin_of(int64_t bytes)
{
    int power = 63 - __builtin_clzll((unsigned long long)bytes | STEPS);
    return power * STEPS + (int)((bytes >> (power - 3)) & (STEPS - 1));
}

static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

static bool is_mapped(int64_t block_bytes) { return block_bytes >= MAPPED_FROM; }

/* NULL if there is no more. The system itself would promise any number of bytes, and kill the process that uses them.
 */
static mx_block *system_alloc(int64_t bytes)
{
    if (bytes > mx_memory_and_swap_bytes() - PROGRAM_BYTES - stats.reserved_bytes)
        return NULL;
    size_t total = (size_t)bytes + HEADER_BYTES;
    mx_block *block = bytes >= MX_ARENA_FROM ? mx_arena_take((int64_t)total) : NULL;
    if (block) {
        block->bytes = bytes;
        return block;
    }
    if (is_mapped(bytes)) {
        block = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
        if (bytes >= HUGE_PAGE)
            madvise(block, total, MADV_HUGEPAGE);
    } else {
        block = aligned_alloc(HEADER_BYTES, total);
        if (!block)
            return NULL;
    }
    block->bytes = bytes;
    return block;
}

static void system_free(mx_block *block)
{
    if (mx_arena_offset(block) >= 0)
        mx_arena_give_back(block, block->bytes + HEADER_BYTES);
    else if (is_mapped(block->bytes))
        munmap(block, (size_t)block->bytes + HEADER_BYTES);
    else
        free(block);
}

/* Takes a kept block of which the request fills at least seven eighths. */
static mx_block *take_kept(int64_t bytes)
{
    int last = bin_of(bytes + bytes / 7);
    for (int b = bin_of(bytes); b <= last; b++)
        for (mx_block **link = &bins[b]; *link; link = &(*link)->next) {
            mx_block *block = *link;
            if (block->bytes < bytes || block->bytes - bytes > block->bytes / 8)
                continue;
            *link = block->next;
            return block;
        }
    return NULL;
}

static void trim(void)
{
    for (int b = 0; b < BINS; b++)
        while (bins[b]) {
            mx_block *block = bins[b];
            bins[b] = block->next;
            stats.reserved_bytes -= block->bytes;
            system_free(block);
        }
}

/* "1.5 GiB"; `text` has room for 32 bytes. */
static const char *size_text(int64_t bytes, char *text)
{
    bool is_large = bytes >= 1 << 30;
    snprintf(text, 32, "%.1f %s", (double)bytes / (is_large ? 1 << 30 : 1 << 20), is_large ? "GiB" : "MiB");
    return text;
}

static mx_status out_of_memory(const mx_pool_stats *s, int64_t bytes)
{
    char asked[32], in_use[32], most[32], limit[80] = ", and the system has no more";
    if (s->limit_bytes > 0)
        snprintf(limit, sizeof limit, " of a limit of %s", size_text(s->limit_bytes, most));
    else if (bytes > mx_memory_and_swap_bytes() - PROGRAM_BYTES - s->in_use_bytes)
        snprintf(limit, sizeof limit, ", and this process may use %s", size_text(mx_memory_and_swap_bytes(), most));
    return mx_fail(MX_ERR_MEMORY,
                   "out of memory: %s asked for, %s in use%s; use a smaller batch, a shorter sequence or a "
                   "remat_policy that keeps less",
                   size_text(bytes, asked), size_text(s->in_use_bytes, in_use), limit);
}

static bool fits_limit(const mx_pool_stats *s, int64_t bytes)
{
    return s->limit_bytes == 0 || s->in_use_bytes + bytes <= s->limit_bytes;
}

static void count(mx_pool_stats *s, int64_t bytes)
{
    s->in_use_bytes += bytes;
    if (s->in_use_bytes > s->peak_bytes)
        s->peak_bytes = s->in_use_bytes;
}

mx_status mx_pool_count(mx_pool_stats *s, int64_t bytes)
{
    if (!fits_limit(s, bytes))
        return out_of_memory(s, bytes);
    count(s, bytes);
    return MX_OK;
}

static mx_status alloc_locked(int64_t bytes, void **data)
{
    int64_t size = round_up(bytes > 0 ? bytes : 1, bytes >= MAPPED_FROM ? 4096 : 64);
    mx_block *block = NULL;
    bool fits = fits_limit(&stats, bytes);
    if (fits)
        block = take_kept(size);
    if (fits && !block) {
        if (stats.limit_bytes != 0 && stats.reserved_bytes + size > stats.limit_bytes)
            trim();
        block = system_alloc(size);
        if (!block) {
            trim();
            block = system_alloc(size);
        }
        if (block)
            stats.reserved_bytes += block->bytes;
    }
    if (!block)
        return out_of_memory(&stats, bytes);
    count(&stats, bytes);
    *data = (char *)block + HEADER_BYTES;
    return MX_OK;
}

mx_status mx_pool_alloc(int64_t bytes, void **data)
{
    pthread_mutex_lock(&lock);
    *data = NULL;
    mx_status status = alloc_locked(bytes, data);
    pthread_mutex_unlock(&lock);
    return status;
}

void mx_pool_free(void *data, int64_t bytes)
{
    if (!data)
        return;
    mx_block *block = (mx_block *)((char *)data - HEADER_BYTES);
    pthread_mutex_lock(&lock);
    stats.in_use_bytes -= bytes;
    int b = bin_of(block->bytes);
    block->next = bins[b];
    bins[b] = block;
    pthread_mutex_unlock(&lock);
}

mx_pool_stats mx_pool_get_stats(void)
{
    pthread_mutex_lock(&lock);
    mx_pool_stats copy = stats;
    pthread_mutex_unlock(&lock);
    return copy;
}

void mx_pool_reset_peak(void)
{
    pthread_mutex_lock(&lock);
    stats.peak_bytes = stats.in_use_bytes;
    pthread_mutex_unlock(&lock);
}

void mx_pool_set_limit(int64_t bytes)
{
    pthread_mutex_lock(&lock);
    stats.limit_bytes = bytes;
    pthread_mutex_unlock(&lock);
}

void mx_pool_trim(void)
{
    pthread_mutex_lock(&lock);
    trim();
    pthread_mutex_unlock(&lock);
}
