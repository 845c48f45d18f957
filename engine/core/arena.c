#define _GNU_SOURCE
#include "core/arena.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4 << 10, HUGE_PAGE = 2 << 20 };

/* A free range. The list is sorted, and no two ranges are adjacent. */
typedef struct range {
    int64_t start, bytes;
    struct range *next;
} range;

static char *base;
static int64_t size;
static int file = -1;
static bool in_use;
static range *free_ranges;

static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/* Gets huge pages for the part of a block that whole huge pages cover. */
static bool populate(char *block, int64_t bytes)
{
    int64_t huge = bytes / HUGE_PAGE * HUGE_PAGE;
    for (int64_t i = 0; i < huge; i += HUGE_PAGE)
        ((volatile char *)block)[i] = 0; /* a completely empty huge page would not be created */
    return huge == 0 || madvise(block, (size_t)huge, MADV_COLLAPSE) == 0;
}

static void release(int64_t start, int64_t bytes)
{
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, bytes);
}

void *mx_arena_map(int fd, int64_t bytes)
{
    size_t room = (size_t)bytes + HUGE_PAGE;
    char *reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    char *aligned = reserved + (size_t)(-(uintptr_t)reserved) % HUGE_PAGE;
    void *place = mmap(aligned, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (place == MAP_FAILED) {
        munmap(reserved, room);
        return NULL;
    }
    if (aligned > reserved)
        munmap(reserved, (size_t)(aligned - reserved));
    munmap(aligned + bytes, room - (size_t)(aligned - reserved) - (size_t)bytes);
    madvise(place, (size_t)bytes, MADV_HUGEPAGE);
    madvise(place, (size_t)bytes, MADV_DONTDUMP); /* a core dump would write the empty parts too */
    return place;
}

/* Checks the limit of file sizes, because exceeding it would end the process. */
static bool may_be_as_large(int64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= (rlim_t)bytes;
}

bool mx_arena_open(int64_t bytes, int *fd)
{
    *fd = file = may_be_as_large(bytes) ? memfd_create("mxlua-tensors", MFD_CLOEXEC) : -1;
    if (file < 0)
        return false;
    free_ranges = malloc(sizeof *free_ranges);
    base = ftruncate(file, bytes) == 0 && free_ranges ? mx_arena_map(file, bytes) : NULL;
    size = base ? bytes : 0;
    bool huge = base && populate(base, HUGE_PAGE);
    if (free_ranges)
        *free_ranges = (range){0, size, NULL};
    if (!huge)
        mx_arena_close();
    return huge;
}

void mx_arena_use(void)
{
    release(0, HUGE_PAGE);
    in_use = true;
}

void mx_arena_close(void)
{
    if (base)
        munmap(base, (size_t)size);
    if (file >= 0)
        close(file);
    free(free_ranges);
    base = NULL;
    free_ranges = NULL;
    size = 0;
    file = -1;
}

/* Removes `bytes` from `start` on from the range that contains them. False: no memory to split the range in two. */
static bool cut(range **link, int64_t start, int64_t bytes)
{
    range *r = *link;
    int64_t before = start - r->start, after = r->start + r->bytes - start - bytes;
    if (before > 0 && after > 0) {
        range *rest = malloc(sizeof *rest);
        if (!rest)
            return false;
        *rest = (range){start + bytes, after, r->next};
        r->bytes = before;
        r->next = rest;
    } else if (before > 0) {
        r->bytes = before;
    } else if (after > 0) {
        r->start = start + bytes;
        r->bytes = after;
    } else {
        *link = r->next;
        free(r);
    }
    return true;
}

void *mx_arena_take(int64_t bytes)
{
    int64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    bytes = round_up(bytes, PAGE);
    for (range **link = &free_ranges; in_use && *link; link = &(*link)->next) {
        int64_t start = round_up((*link)->start, align);
        if (start + bytes > (*link)->start + (*link)->bytes)
            continue;
        if (!cut(link, start, bytes))
            return NULL;
        populate(base + start, bytes); /* on failure: small pages, which are slower but correct */
        return base + start;
    }
    return NULL;
}

void mx_arena_give_back(void *block, int64_t bytes)
{
    int64_t start = (char *)block - base;
    bytes = round_up(bytes, PAGE);
    release(start, bytes);
    range *before = NULL, **link = &free_ranges;
    while (*link && (*link)->start < start) {
        before = *link;
        link = &before->next;
    }
    range *after = *link;
    bool joins_before = before && before->start + before->bytes == start;
    bool joins_after = after && start + bytes == after->start;
    if (joins_before) {
        before->bytes += bytes + (joins_after ? after->bytes : 0);
        if (joins_after) {
            before->next = after->next;
            free(after);
        }
    } else if (joins_after) {
        after->start = start;
        after->bytes += bytes;
    } else {
        range *r = malloc(sizeof *r);
        if (!r) /* its addresses are lost, but not its memory */
            return;
        *r = (range){start, bytes, after};
        *link = r;
    }
}

int64_t mx_arena_offset(const void *address)
{
    const char *p = address;
    return in_use && p >= base && p < base + size ? p - base : -1;
}
