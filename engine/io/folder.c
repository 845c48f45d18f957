#define _GNU_SOURCE
#include "io/folder.h"

#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mx_status fail_system(const char *what, const char *path)
{
    return mx_fail(MX_ERR_IO, "cannot %s '%s': %s", what, path, strerror(errno));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_entry *)a)->value.text, ((const mx_entry *)b)->value.text);
}

static mx_status read_names(DIR *folder, const char *path, mx_value *names)
{
    names->kind = MX_ARRAY;
    for (errno = 0;; errno = 0) {
        const struct dirent *entry = readdir(folder);
        if (!entry)
            return errno ? fail_system("list", path) : MX_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        mx_entry *name;
        MX_TRY(mx_value_append(names, NULL, &name));
        MX_TRY(mx_value_set_string(&name->value, entry->d_name, strlen(entry->d_name)));
    }
}

mx_status mx_folder_list(const char *path, mx_value *names)
{
    DIR *folder = opendir(path);
    if (!folder)
        return fail_system("list", path);
    mx_status status = read_names(folder, path, names);
    closedir(folder);
    if (status == MX_OK && names->count)
        qsort(names->entries, names->count, sizeof *names->entries, by_name);
    return status;
}

static mx_status sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_system("open", path);
    /* EINVAL: a file system that cannot sync a folder. */
    mx_status status = fsync(fd) != 0 && errno != EINVAL ? fail_system("sync", path) : MX_OK;
    close(fd);
    return status;
}

/* RENAME_NOREPLACE, because a plain rename would replace an empty folder. Not every file system supports it. */
mx_status mx_folder_move(const char *from, const char *to)
{
    MX_TRY(sync_folder(from));
    int failed = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (failed && errno == EINVAL)
        failed = mx_file_exists(to) ? (errno = EEXIST, -1) : rename(from, to);
    if (failed)
        return mx_fail(MX_ERR_IO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
    char *above = strdup(to);
    if (!above)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    char *slash = strrchr(above, '/');
    if (slash)
        *(slash == above ? slash + 1 : slash) = 0;
    mx_status status = sync_folder(slash ? above : ".");
    free(above);
    return status;
}

mx_status mx_folder_replace(const char *from, const char *to, const char *old)
{
    MX_TRY(sync_folder(from));
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return mx_folder_move(from, old);
    if (errno != EINVAL && errno != ENOSYS)
        return mx_fail(MX_ERR_IO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
    MX_TRY(mx_folder_move(to, old)); /* the file system cannot exchange two names */
    return mx_folder_move(from, to);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

mx_status mx_folder_remove(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
        return fail_system("remove", path);
    return MX_OK;
}
