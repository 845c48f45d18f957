#define _GNU_SOURCE
#include "core/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The number in a file. INT64_MAX, no limit, if the file is not there or has the word "max". */
static int64_t read_limit(const char *path)
{
    FILE *file = fopen(path, "r");
    int64_t bytes = INT64_MAX;
    if (!file)
        return bytes;
    if (fscanf(file, "%" SCNd64, &bytes) != 1)
        bytes = INT64_MAX;
    fclose(file);
    return bytes;
}

/* The least limit of `group`, a path below `mount`, and of the groups above it. A container may see its own group as
 * the mount, while `group` is still its path outside: then only the last of these files exists. */
static int64_t least_limit(const char *root, const char *mount, char *group, const char *name)
{
    int64_t least = INT64_MAX;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = '\0';
        char path[4096];
        snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, name);
        least = smaller(least, read_limit(path));
    }
    return least;
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

int64_t mx_memory_group_limit(const char *root)
{
    char path[4096], *line = NULL;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    size_t size = 0;
    int64_t least = INT64_MAX;
    while (file && getline(&line, &size, file) > 0) { /* NUMBER:CONTROLLERS:PATH, without controllers in version 2 */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        controllers++;
        *group++ = '\0';
        if (*controllers == '\0')
            least = smaller(least, least_limit(root, "/sys/fs/cgroup", group, "memory.max"));
        else if (has_word(controllers, "memory"))
            least = smaller(least, least_limit(root, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
    if (file)
        fclose(file);
    free(line);
    return least;
}

int64_t mx_memory_bytes(void)
{
    static int64_t bytes;
    struct sysinfo machine;
    if (bytes == 0 && sysinfo(&machine) == 0)
        bytes = smaller((int64_t)machine.totalram * machine.mem_unit, mx_memory_group_limit(""));
    return bytes;
}

int64_t mx_memory_and_swap_bytes(void)
{
    static int64_t bytes;
    struct sysinfo machine;
    if (bytes == 0 && sysinfo(&machine) == 0)
        bytes = mx_memory_bytes() + (int64_t)machine.totalswap * machine.mem_unit;
    return bytes;
}
