/* The memory pool: where the host's tensors and the scratch memory of kernels come from, and where they are counted.
 *
 * Blocks are 64-byte aligned, from 2 MiB on of huge pages; where ranks share memory, those of 128 KiB and more lie in
 * the arena (core/arena.h). A freed block is kept and given out again to a request that fills at least seven eighths of
 * it, so a steady training step asks the system for nothing and pays for no page faults. */
#ifndef MX_CORE_POOL_H
#define MX_CORE_POOL_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mx_pool_stats {
    int64_t in_use_bytes;   /* held by storages now */
    int64_t peak_bytes;     /* the most of in_use_bytes since the last reset */
    int64_t reserved_bytes; /* in_use_bytes and what is kept for reuse */
    int64_t limit_bytes;    /* a request that would pass it fails; 0: no limit but the machine's */
} mx_pool_stats;

/* `bytes` of memory, not cleared; a block of 0 bytes is valid. Fails with MX_ERR_MEMORY, naming the sizes. */
mx_status mx_pool_alloc(int64_t bytes, void **data);
void mx_pool_free(void *data, int64_t bytes); /* `bytes` as asked for; NULL is allowed */

/* For devices that count memory in their own stats: counts a request of so many bytes. MX_ERR_MEMORY, with the sizes,
 * when the limit has no room for it. */
mx_status mx_pool_count(mx_pool_stats *stats, int64_t bytes);

mx_pool_stats mx_pool_get_stats(void);
void mx_pool_reset_peak(void);
void mx_pool_set_limit(int64_t bytes);
void mx_pool_trim(void); /* gives what is kept for reuse back to the system */

#endif
