/* The arena: blocks apart and aligned, joined again when given back, seen through a second mapping, gone when released.
 */
#include "check.h"
#include "core/arena.h"
#include "core/pool.h"

#include <string.h>

enum { MIB = 1 << 20, HUGE_PAGE = 2 * MIB, BYTES = 64 * MIB };

static char *other; /* as another process sees it */

static void test_blocks_are_apart(void)
{
    enum { N = 40 };
    char *block[N];
    int64_t bytes[N];
    for (int i = 0; i < N; i++) {
        bytes[i] = 64 + (i % 3 == 0 ? HUGE_PAGE : MX_ARENA_FROM) + i * 64;
        block[i] = mx_arena_take(bytes[i]);
        CHECK(block[i] != NULL, "block %d of %lld bytes", i, (long long)bytes[i]);
        if (!block[i])
            return;
        CHECK(mx_arena_offset(block[i]) % (bytes[i] >= HUGE_PAGE ? HUGE_PAGE : 4096) == 0, "block %d", i);
        memset(block[i], i + 1, (size_t)bytes[i]);
    }
    for (int i = 0; i < N; i++) {
        const char *seen = other + mx_arena_offset(block[i]);
        bool same = true;
        for (int64_t k = 0; k < bytes[i]; k++)
            same = same && seen[k] == i + 1;
        CHECK(same, "block %d was written by another one, or is seen elsewhere", i);
    }
    for (int i = 0; i < N; i += 2)
        mx_arena_give_back(block[i], bytes[i]);
    for (int i = 1; i < N; i += 2) {
        const char *seen = other + mx_arena_offset(block[i]);
        CHECK(seen[0] == i + 1 && seen[bytes[i] - 1] == i + 1, "block %d is there", i);
        mx_arena_give_back(block[i], bytes[i]);
    }
}

static void test_all_of_it_is_one_again(void)
{
    char *all = mx_arena_take(BYTES);
    CHECK(all != NULL && mx_arena_offset(all) == 0, "whatever was taken before has been joined");
    CHECK(mx_arena_take(MX_ARENA_FROM) == NULL, "it is full");
    CHECK(mx_arena_offset(all + BYTES - 1) == BYTES - 1, "the last byte");
    CHECK(mx_arena_offset(all + BYTES) == -1 && mx_arena_offset(&all) == -1, "outside");
    all[5 * MIB] = 7;
    mx_arena_give_back(all, BYTES);
    all = mx_arena_take(BYTES);
    CHECK(all && all[5 * MIB] == 0 && other[5 * MIB] == 0, "memory that was given back is empty");
    mx_arena_give_back(all, BYTES);
}

static void test_the_pool_takes_of_it(void)
{
    void *small, *large, *huge, *elsewhere;
    bool ok = mx_pool_alloc(MX_ARENA_FROM - 64, &small) == MX_OK && mx_pool_alloc(MX_ARENA_FROM, &large) == MX_OK &&
              mx_pool_alloc(BYTES / 2, &huge) == MX_OK && mx_pool_alloc(BYTES, &elsewhere) == MX_OK;
    CHECK(ok, "%s", mx_message());
    if (!ok)
        return;
    CHECK(mx_arena_offset(small) == -1, "small blocks are not shared");
    CHECK(mx_arena_offset(large) >= 0 && mx_arena_offset(huge) >= 0, "large ones are");
    CHECK(mx_arena_offset(elsewhere) == -1, "what it has no room for is found elsewhere");
    memset(huge, 1, BYTES / 2);
    memset(elsewhere, 1, BYTES);
    mx_pool_free(small, MX_ARENA_FROM - 64);
    mx_pool_free(large, MX_ARENA_FROM);
    mx_pool_free(huge, BYTES / 2);
    mx_pool_free(elsewhere, BYTES);
    mx_pool_trim();
    CHECK(mx_pool_get_stats().reserved_bytes == 0, "all is given back");
    test_all_of_it_is_one_again();
}

int main(void)
{
    int fd = -1;
    CHECK(mx_arena_offset(&fd) == -1 && mx_arena_take(MX_ARENA_FROM) == NULL, "nothing before it is opened");
    if (!mx_arena_open(BYTES, &fd)) {
        printf("SKIP: no memory files of huge pages here\n");
        return check_done();
    }
    CHECK(mx_arena_take(MX_ARENA_FROM) == NULL, "nothing before it is in use");
    other = mx_arena_map(fd, BYTES);
    CHECK(other != NULL, "a second mapping");
    mx_arena_use();
    test_blocks_are_apart();
    test_all_of_it_is_one_again();
    test_the_pool_takes_of_it();
    return check_done();
}
