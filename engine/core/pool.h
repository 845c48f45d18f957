/* The memory pool: allocates and counts the memory of the host's tensors and the kernels' scratch memory.
 *
 * Blocks are aligned to 64 bytes; blocks of 2 MiB and more have huge pages. If ranks share memory, blocks of 128 KiB
 * and more are in the arena (core/arena.h). A freed block is kept and used again for a request that fills at least
 * seven eighths of it, so training steps after the first need no memory from the system and have no page faults. */
#ifndef MX_CORE_POOL_H
#define MX_CORE_POOL_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mx_pool_stats {
    int64_t in_use_bytes;   /* held by storages now */
    int64_t peak_bytes;     /* maximum of in_use_bytes since the last reset */
    int64_t reserved_bytes; /* in_use_bytes and the blocks kept for reuse */
    int64_t limit_bytes;    /* a request beyond it fails; 0: only what the process may use (memory.h) */
} mx_pool_stats;

/* `bytes` of memory, not cleared; a block of 0 bytes is valid. Fails with MX_ERR_MEMORY, naming the sizes. */
mx_status mx_pool_alloc(int64_t bytes, void **data);
void mx_pool_free(void *data, int64_t bytes); /* `bytes` as in alloc; NULL is allowed */

/* For devices that count memory in their own stats: counts a request of so many bytes. MX_ERR_MEMORY, with the sizes,
 * if it exceeds the limit. */
mx_status mx_pool_count(mx_pool_stats *stats, int64_t bytes);

mx_pool_stats mx_pool_get_stats(void);
void mx_pool_reset_peak(void);
void mx_pool_set_limit(int64_t bytes);
void mx_pool_trim(void); /* returns the blocks kept for reuse to the system */

#endif
