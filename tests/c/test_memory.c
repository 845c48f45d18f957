/* The memory that a process may use: limits of its control groups, and the refusal of what no machine has. */
#define _GNU_SOURCE
#include "check.h"
#include "core/memory.h"
#include "core/pool.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/mxlua-test-XXXXXX";

/* Writes a file below the root, and the folders that it is in. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static int64_t limit(void) { return mx_memory_group_limit(root); }

static void test_groups(void)
{
    CHECK(limit() == INT64_MAX, "no groups at all");
    put("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    CHECK(limit() == INT64_MAX, "a group without files");
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    CHECK(limit() == INT64_MAX, "a group without a limit");
    put("sys/fs/cgroup/slurm/job_7/memory.max", "3000000000\n");
    CHECK(limit() == 3000000000, "the limit of the group above: %ld", limit());
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "4000000000\n");
    CHECK(limit() == 3000000000, "the least counts: %ld", limit());
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "2000000000\n");
    CHECK(limit() == 2000000000, "its own is less: %ld", limit());

    put("proc/self/cgroup", "5:cpu,memory:/docker/a1\n4:memory_other:/b\n1:name=systemd:/\n0::/\nnonsense\n");
    CHECK(limit() == INT64_MAX, "version 1, without a limit");
    put("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1000\n"); /* not of the controller "memory" */
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1500000000\n");
    CHECK(limit() == 1500000000, "a container sees its group as the mount: %ld", limit());
    put("sys/fs/cgroup/memory/docker/a1/memory.limit_in_bytes", "1200000000\n");
    CHECK(limit() == 1200000000, "its group: %ld", limit());
}

static void test_refused(void)
{
    int64_t most = mx_memory_and_swap_bytes();
    CHECK(mx_memory_bytes() > 0 && most >= mx_memory_bytes(), "%ld, with swap %ld", mx_memory_bytes(), most);
    int64_t before = mx_pool_get_stats().in_use_bytes;
    void *data = &data;
    CHECK(mx_pool_alloc(most + 1, &data) == MX_ERR_MEMORY && !data, "more than the machine has");
    CHECK(strstr(mx_message(), "and this process may use"), "%s", mx_message());
    CHECK(mx_pool_alloc(INT64_MAX / 2, &data) == MX_ERR_MEMORY && !data, "far more");
    CHECK(mx_pool_get_stats().in_use_bytes == before, "nothing is counted");
    CHECK(mx_pool_alloc(1 << 20, &data) == MX_OK, "%s", mx_message());
    mx_pool_free(data, 1 << 20);
}

int main(void)
{
    if (!mkdtemp(root)) {
        perror("mkdtemp");
        return EXIT_FAILURE;
    }
    test_groups();
    test_refused();
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
