/* The arena: tensor memory that other processes of the machine map, so that collectives read and write it where it is.
 *
 * It is a sparse memory file, mapped once, of which the pool takes its larger blocks. Pages come as huge ones: at once,
 * when a block is taken, since most systems give them to shared memory only on demand. On several NUMA nodes they lie
 * on that of the thread which asked. Until it is opened, and when it is full, the pool goes elsewhere. */
#ifndef MX_CORE_ARENA_H
#define MX_CORE_ARENA_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { MX_ARENA_FROM = 128 << 10 }; /* bytes of the smallest block that the pool takes of it */

/* Makes it, of at most `bytes` (a multiple of 2 MiB; only what is taken uses memory): its file in *fd. False where the
 * system has no such memory, or no huge pages for it, which would slow computing down. Not thread-safe; once. */
bool mx_arena_open(int64_t bytes, int *fd);

/* The whole of an arena of `bytes` at a place of its own, of huge pages where it has them; NULL: refused. */
void *mx_arena_map(int fd, int64_t bytes);

/* Lets the pool take blocks, or gives everything back. Not thread-safe. */
void mx_arena_use(void);
void mx_arena_close(void);

/* For the pool, under its lock. NULL when not in use, or full; `bytes` as taken. */
void *mx_arena_take(int64_t bytes);
void mx_arena_give_back(void *block, int64_t bytes);

/* How far into the arena this address is; -1: outside. Thread-safe. */
int64_t mx_arena_offset(const void *address);

#endif
