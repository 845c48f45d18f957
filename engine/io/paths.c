#define _GNU_SOURCE
#include "io/paths.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH = 64 }; /* of folders; a deeper nesting is a link to a parent folder */

static mx_status out_of_memory(void) { return mx_fail(MX_ERR_MEMORY, "out of memory for a list of files"); }

static mx_status append(mx_paths *paths, const char *path)
{
    if (paths->count == paths->room) {
        size_t room = paths->room ? 2 * paths->room : 64;
        char **list = realloc(paths->path, room * sizeof *list);
        if (!list)
            return out_of_memory();
        paths->path = list;
        paths->room = room;
    }
    paths->path[paths->count] = strdup(path);
    return paths->path[paths->count++] ? MX_OK : out_of_memory();
}

static mx_status add_path(mx_paths *paths, const char *path, int depth);

static mx_status add_folder(mx_paths *paths, const char *path, int depth)
{
    if (depth == DEPTH)
        return mx_fail(MX_ERR_IO, "'%.200s...': folders lie more than %d deep", path, DEPTH);
    DIR *folder = opendir(path);
    if (!folder)
        return mx_fail(MX_ERR_IO, "cannot read the folder '%s': %s", path, strerror(errno));
    mx_status status = MX_OK;
    for (struct dirent *entry; status == MX_OK && (entry = readdir(folder));) {
        char *below = NULL;
        if (entry->d_name[0] == '.')
            continue;
        if (asprintf(&below, "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", entry->d_name) < 0)
            below = NULL;
        status = below ? add_path(paths, below, depth + 1) : out_of_memory();
        free(below);
    }
    closedir(folder);
    return status;
}

/* Adds an existing file, or the files of an existing folder. */
static mx_status add_path(mx_paths *paths, const char *path, int depth)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return mx_fail(MX_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode))
        return add_folder(paths, path, depth);
    return append(paths, path);
}

/* The pattern with its longest existing folder escaped, so that in "a [1]/b*" only the star is special. The caller
 * frees it; NULL if there is no memory. */
static char *keep_folder(const char *pattern)
{
    struct stat about;
    char *kept = malloc(2 * strlen(pattern) + 1), *folder = strdup(pattern), *to = kept, *slash = NULL;
    while (kept && folder && (slash = strrchr(folder, '/'))) {
        *slash = 0;
        if (stat(folder, &about) == 0)
            break;
    }
    for (const char *c = slash ? folder : ""; kept && *c; c++) {
        if (strchr("*?[]\\", *c))
            *to++ = '\\';
        *to++ = *c;
    }
    if (kept && folder)
        strcpy(to, slash ? pattern + (slash - folder) : pattern);
    bool whole = kept && folder;
    free(folder);
    if (!whole)
        free(kept);
    return whole ? kept : NULL;
}

static mx_status add_matches(mx_paths *paths, const char *pattern)
{
    glob_t found;
    struct stat about;
    if (stat(pattern, &about) == 0)
        return add_path(paths, pattern, 0);
    int reason = errno;
    char *kept = keep_folder(pattern);
    if (!kept)
        return out_of_memory();
    int result = glob(kept, 0, NULL, &found);
    free(kept);
    if (result == GLOB_NOMATCH)
        return strpbrk(pattern, "*?[")
                   ? mx_fail(MX_ERR_IO, "no file matches '%s' (for such a character in a name write \\* \\? \\[)",
                             pattern)
                   : mx_fail(MX_ERR_IO, "cannot open '%s': %s", pattern, strerror(reason));
    if (result != 0)
        return mx_fail(MX_ERR_IO, "cannot list '%s'", pattern);
    mx_status status = MX_OK;
    for (size_t i = 0; i < found.gl_pathc && status == MX_OK; i++)
        status = add_path(paths, found.gl_pathv[i], 0);
    globfree(&found);
    return status;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

mx_status mx_paths_add(mx_paths *paths, const char *pattern)
{
    size_t before = paths->count;
    if (!pattern[0])
        return mx_fail(MX_ERR_IO, "'' is no file: expected the name of a file or folder, or a pattern");
    MX_TRY(add_matches(paths, pattern));
    if (paths->count == before)
        return mx_fail(MX_ERR_IO, "'%s' holds no files", pattern);
    qsort(paths->path + before, paths->count - before, sizeof *paths->path, by_bytes);
    return MX_OK;
}

void mx_paths_free(mx_paths *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        free(paths->path[i]);
    free(paths->path);
    *paths = (mx_paths){0};
}
