/* Values that are away: they come back as they were, the file is used again, and failures say what happened. */
#define _GNU_SOURCE
#include "check.h"
#include "core/offload.h"
#include "core/pool.h"
#include "core/spill.h"
#include "temporary.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

static mx_tensor *new_tensor(int64_t n, int seed)
{
    mx_tensor *t = NULL;
    const mx_shape shape = {1, {n}};
    if (mx_tensor_new(MX_F32, &shape, &t) != MX_OK)
        exit(EXIT_FAILURE);
    for (int64_t i = 0; i < n; i++)
        mx_f32(t)[i] = (float)(i * 7 + seed);
    return t;
}

static int has_values(const mx_tensor *t, int seed)
{
    int same = mx_tensor_wait(t, false) == MX_OK;
    for (int64_t i = 0; same && i < mx_count(t); i++)
        same = mx_f32(t)[i] == (float)(i * 7 + seed);
    return same;
}

static void test_out_and_back(void)
{
    int64_t before = mx_pool_get_stats().in_use_bytes;
    mx_tensor *t = new_tensor(100001, 3);
    CHECK(mx_tensor_offload(t) == MX_OK && !t->storage && t->away, "offloaded");
    CHECK(mx_offload_settle(true) == MX_OK, "settled");
    CHECK(mx_pool_get_stats().in_use_bytes == before, "its memory is released");
    for (int round = 0; round < 3; round++) {
        CHECK(mx_tensor_fetch(t) == MX_OK && t->storage, "fetched");
        CHECK(has_values(t, 3), "the values are back");
        mx_tensor_evict(t);
        CHECK(!t->storage && t->away, "evicted");
    }
    mx_release(t);
    CHECK(mx_offload_get_stats(false).away_bytes == 0, "forgotten");
    CHECK(mx_pool_get_stats().in_use_bytes == before, "and released");
}

/* Fetched at once: by the write that is under way, or by a read after it. */
static void test_at_once(void)
{
    for (int round = 0; round < 200; round++) {
        mx_tensor *t = new_tensor(20000, round);
        CHECK(mx_tensor_offload(t) == MX_OK && mx_tensor_fetch(t) == MX_OK && has_values(t, round), "round %d", round);
        mx_release(t);
    }
    CHECK(mx_offload_settle(true) == MX_OK, "settled");
}

/* Many tensors of many sizes, forgotten in another order: the file of the first round does for the others. */
static void test_the_file_is_used_again(void)
{
    enum { N = 64 };
    int64_t first = 0;
    for (int round = 0; round < 6; round++) {
        mx_tensor *all[N];
        for (int i = 0; i < N; i++) {
            all[i] = new_tensor(1 + (i * 7919) % 5000, i + round);
            CHECK(mx_tensor_offload(all[i]) == MX_OK, "offload");
        }
        for (int k = 0; k < N; k++) {
            int i = (k * 37 + round) % N;
            CHECK(mx_tensor_fetch(all[i]) == MX_OK && has_values(all[i], i + round), "tensor %d of round %d", i, round);
            mx_release(all[i]);
        }
        CHECK(mx_offload_settle(true) == MX_OK, "settled");
        int64_t bytes = mx_spill_file_bytes();
        first = round == 0 ? bytes : first;
        CHECK(bytes == first, "round %d: the file has %lld bytes, not %lld", round, (long long)bytes, (long long)first);
    }
    CHECK(temporary_files() == 0, "and no name");
}

static void test_what_stays(void)
{
    mx_tensor *t = new_tensor(100, 1), *view = NULL;
    CHECK(mx_tensor_new_empty(MX_F32, &t->shape, &view) == MX_OK, "view");
    mx_tensor_alias(view, t, 0);
    CHECK(mx_tensor_offload(t) == MX_OK && t->storage && !t->away, "what another tensor shares stays");
    mx_release(view);
    CHECK(mx_tensor_offload(t) == MX_OK && !t->storage, "and goes when it is alone");
    CHECK(mx_tensor_fetch(t) == MX_OK && mx_tensor_wait(t, true) == MX_OK, "fetched for writing");
    mx_f32(t)[5] = -1;
    mx_tensor_evict(t);
    CHECK(t->storage && !t->away && mx_f32(t)[5] == -1, "a changed value is not lost");
    mx_release(t);
    mx_tensor *none = new_tensor(0, 0);
    CHECK(mx_tensor_offload(none) == MX_OK && none->storage, "nothing to offload");
    mx_release(none);
}

static void test_directories(void)
{
    CHECK(mx_spill_open(&mx_host, "/nowhere/at/all") == MX_ERR_IO, "a directory that is not there");
    CHECK(strstr(mx_message(), "/nowhere/at/all") && strstr(mx_message(), "offload_directory"), "%s", mx_message());
    CHECK(mx_spill_open(&mx_host, "/proc") == MX_ERR_IO, "one that takes no files");
    mx_tensor *t = new_tensor(10, 0);
    CHECK(mx_tensor_offload(t) == MX_OK, "the old file is still there");
    CHECK(mx_spill_open(&mx_host, "/tmp") == MX_ERR_STATE, "and cannot move now");
    mx_release(t);
}

/* The system may write no further than this in any file. */
static void limit_file(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void test_a_full_disk(void)
{
    CHECK(mx_spill_open(&mx_host, "/var/tmp") == MX_OK, "a new file");
    limit_file(100000);
    mx_tensor *t = new_tensor(100000, 0);
    CHECK(mx_tensor_offload(t) == MX_OK, "goes on its own");
    CHECK(mx_offload_settle(true) == MX_ERR_IO, "cannot be written");
    CHECK(strstr(mx_message(), "/var/tmp") && strstr(mx_message(), "File too large"), "%s", mx_message());
    limit_file(RLIM_INFINITY);
    mx_release(t);
    CHECK(mx_offload_settle(true) == MX_OK, "told once");
}

/* The descriptor of the file without a name. */
static int find_file(void)
{
    for (int fd = 3; fd < 256; fd++) {
        char link[64], path[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        if (strncmp(path, temporary_folder, strlen(temporary_folder)) == 0)
            return fd;
    }
    return -1;
}

static void test_a_short_read(void)
{
    CHECK(mx_spill_open(&mx_host, temporary_folder) == MX_OK, "a new file");
    mx_tensor *t = new_tensor(100000, 0);
    CHECK(mx_tensor_offload(t) == MX_OK && mx_offload_settle(true) == MX_OK, "offloaded");
    CHECK(ftruncate(find_file(), 5000) == 0, "cut short");
    CHECK(mx_tensor_fetch(t) == MX_OK, "goes on its own");
    CHECK(mx_tensor_wait(t, false) == MX_ERR_IO, "a short read");
    CHECK(strstr(mx_message(), "shorter than what was written"), "%s", mx_message());
    mx_release(t);
}

int main(void)
{
    temporary_make();
    CHECK(mx_spill_open(&mx_host, temporary_folder) == MX_OK, "open");
    test_out_and_back();
    test_at_once();
    test_the_file_is_used_again();
    test_what_stays();
    test_directories();
    test_a_full_disk();
    test_a_short_read();
    temporary_remove();
    return check_done();
}
