/* The arena: tensor memory that other ranks of the node map, so that collectives read and write it in place.
 *
 * The arena is a sparse memory file that is mapped once. The pool takes its larger blocks from it. A block gets huge
 * pages as soon as it is taken, because most systems give huge pages to shared memory only on demand. Pages are on the
 * NUMA node of the thread that takes the block. The pool uses other memory until the arena is open, and when it is
 * full. */
#ifndef MX_CORE_ARENA_H
#define MX_CORE_ARENA_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { MX_ARENA_FROM = 4 << 10 }; /* size of the smallest block that the pool takes from it */

/* Creates the arena of at most `bytes` (a multiple of 2 MiB; only taken blocks use memory) and returns its file in *fd.
 * False if the system has no such memory, or has no huge pages for it: small pages would make computing slower. Not
 * thread-safe; to be called once. */
bool mx_arena_open(int64_t bytes, int *fd);

/* Maps a whole arena of `bytes`, with huge pages where it has them; NULL if the system refuses. */
void *mx_arena_map(int fd, int64_t bytes);

/* use: lets the pool take blocks. close: returns all memory to the system. Not thread-safe. */
void mx_arena_use(void);
void mx_arena_close(void);

/* For the pool, under its lock. take: NULL if the arena is not in use or full. give_back: `bytes` as in take. */
void *mx_arena_take(int64_t bytes);
void mx_arena_give_back(void *block, int64_t bytes);

/* The offset of an address in the arena; -1: outside. Thread-safe. */
int64_t mx_arena_offset(const void *address);

#endif
