#define _GNU_SOURCE
#include "io/file.h"

#include "io/checksum.h"
#include "io/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static mx_status fail_system(const char *doing, const char *path)
{
    return mx_fail(MX_ERR_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

/* ---- reading ---- */

mx_status mx_file_open(const char *path, int *fd, int64_t *bytes)
{
    *fd = -1;
    *bytes = 0;
    /* O_NONBLOCK: opening a pipe without a writer would block for ever. */
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return fail_system("open", path);
    struct stat about;
    mx_status status = MX_OK;
    if (fstat(opened, &about) != 0)
        status = fail_system("examine", path);
    else if (!S_ISREG(about.st_mode))
        status = mx_fail(MX_ERR_IO, "cannot read '%s': it is %s, not a file", path,
                         S_ISDIR(about.st_mode) ? "a folder" : "a pipe or device");
    if (status != MX_OK) {
        close(opened);
        return status;
    }
    *fd = opened;
    *bytes = about.st_size;
    return MX_OK;
}

mx_status mx_file_read_at(int fd, const char *path, int64_t offset, void *to, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        int64_t ask = bytes - done < 1 << 30 ? bytes - done : 1 << 30;
        ssize_t got = pread(fd, (char *)to + done, (size_t)ask, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_system("read", path);
        if (got == 0)
            return mx_fail(MX_ERR_IO, "'%s' is truncated: %lld bytes expected, it ends after %lld", path,
                           (long long)(offset + bytes), (long long)(offset + done));
        done += got;
    }
    return MX_OK;
}

static mx_status read_all(int fd, const char *path, int64_t bytes, char **text)
{
    char *buffer = malloc((size_t)bytes + 1);
    if (!buffer)
        return mx_fail(MX_ERR_MEMORY, "out of memory to read '%s' of %lld bytes", path, (long long)bytes);
    mx_status status = mx_file_read_at(fd, path, 0, buffer, bytes);
    if (status != MX_OK) {
        free(buffer);
        return status;
    }
    buffer[bytes] = 0;
    *text = buffer;
    return MX_OK;
}

mx_status mx_file_read(const char *path, int64_t limit, char **text, size_t *bytes)
{
    int fd;
    int64_t size;
    *text = NULL;
    MX_TRY(mx_file_open(path, &fd, &size));
    mx_status status = limit > 0 && size > limit
                           ? mx_fail(MX_ERR_IO, "'%s' has %lld bytes: at most %lld are read at once", path,
                                     (long long)size, (long long)limit)
                           : read_all(fd, path, size, text);
    close(fd);
    *bytes = (size_t)size;
    return status;
}

enum { SUM_PLACES = 64, SUM_BYTES = 1 << 14 };

static mx_status sum_of(int fd, const char *path, int64_t bytes, uint32_t *out)
{
    char piece[SUM_BYTES];
    int64_t step = SUM_BYTES, last = bytes - SUM_BYTES;
    bool whole = bytes <= (int64_t)SUM_PLACES * SUM_BYTES;
    *out = mx_crc32c(0, &bytes, sizeof bytes);
    for (int64_t i = 0; whole ? i * step < bytes : i < SUM_PLACES; i++) {
        int64_t at = whole ? i * step : (int64_t)((double)last / (SUM_PLACES - 1) * (double)i);
        int64_t part = bytes - at < SUM_BYTES ? bytes - at : SUM_BYTES;
        if (!whole && i == SUM_PLACES - 1)
            at = last;
        MX_TRY(mx_file_read_at(fd, path, at, piece, part));
        *out = mx_crc32c(*out, piece, (size_t)part);
    }
    return MX_OK;
}

mx_status mx_file_sum(const char *path, uint32_t *out)
{
    int fd;
    int64_t bytes;
    MX_TRY(mx_file_open(path, &fd, &bytes));
    mx_status status = sum_of(fd, path, bytes, out);
    close(fd);
    return status;
}

bool mx_file_exists(const char *path) { return access(path, F_OK) == 0; }

/* "DEVICE:INODE" if the path exists, else "FOLDER'S REAL PATH/NAME". */
static mx_status identify(const char *path, const struct stat *about, bool is_there, char **identity)
{
    *identity = NULL;
    if (is_there) {
        if (asprintf(identity, "%llu:%llu", (unsigned long long)about->st_dev, (unsigned long long)about->st_ino) < 0)
            *identity = NULL;
    } else {
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("."), real[PATH_MAX];
        bool found = folder && realpath(folder, real);
        if (asprintf(identity, "%s/%s", found ? real : folder ? folder : "", base) < 0)
            *identity = NULL;
        free(folder);
    }
    return *identity ? MX_OK : mx_fail(MX_ERR_MEMORY, "out of memory for a path");
}

mx_status mx_file_about(const char *path, mx_file_info *info)
{
    struct stat about = {0};
    *info = (mx_file_info){.kind = "nothing", .is_link = lstat(path, &about) == 0 && S_ISLNK(about.st_mode)};
    bool is_there = stat(path, &about) == 0;
    if (is_there) {
        info->kind = S_ISREG(about.st_mode)    ? "file"
                     : S_ISDIR(about.st_mode)  ? "folder"
                     : S_ISFIFO(about.st_mode) ? "pipe"
                     : S_ISSOCK(about.st_mode) ? "socket"
                     : S_ISBLK(about.st_mode)  ? "disk"
                                               : "device";
        info->bytes = about.st_size;
    } else if (errno == EACCES || errno == ENAMETOOLONG || errno == ELOOP) {
        return fail_system("examine", path);
    }
    return identify(path, &about, is_there, &info->identity);
}

/* ---- writing ---- */

static mx_status make_folder(const char *path)
{
    struct stat about;
    if (mkdir(path, 0777) == 0)
        return MX_OK;
    int reason = errno;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return MX_OK;
    errno = reason;
    return fail_system("make the folder", path);
}

mx_status mx_file_make_folders(const char *path)
{
    char *part = strdup(path);
    if (!part)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    mx_status status = MX_OK;
    for (char *p = part + 1; part[0] && *p && status == MX_OK; p++)
        if (*p == '/') {
            *p = 0;
            status = make_folder(part);
            *p = '/';
        }
    if (status == MX_OK)
        status = make_folder(part);
    free(part);
    return status;
}

mx_status mx_file_write_at(int fd, const char *path, int64_t offset, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        int64_t ask = bytes - done < 1 << 30 ? bytes - done : 1 << 30;
        ssize_t written = pwrite(fd, (const char *)data + done, (size_t)ask, offset + done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_system("write", path);
        done += written;
    }
    return MX_OK;
}

static void forget_draft(mx_draft *draft)
{
    free(draft->path);
    free(draft->temporary);
    *draft = (mx_draft){0};
}

/* Removes drafts of `path` that killed processes have left. Drafts that cannot be removed do no harm. */
static void remove_left_over(const char *path, const mx_process *me)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    DIR *names = folder ? opendir(folder) : NULL;
    size_t length = strlen(base);
    time_t now = time(NULL);
    if (names)
        for (const struct dirent *entry; (entry = readdir(names));) {
            struct stat about;
            const char *tag = entry->d_name + length + 5;
            if (strncmp(entry->d_name, base, length) == 0 && strncmp(entry->d_name + length, ".tmp-", 5) == 0 &&
                fstatat(dirfd(names), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(about.st_mode) &&
                mx_process_tag_is_stale(tag, me, difftime(now, about.st_mtime)))
                unlinkat(dirfd(names), entry->d_name, 0);
        }
    if (names)
        closedir(names);
    free(folder);
}

mx_status mx_draft_open(mx_draft *draft, const char *path)
{
    size_t room = strlen(path) + MX_PROCESS_TAG + 24;
    *draft = (mx_draft){.path = strdup(path), .temporary = malloc(room)};
    if (!draft->path || !draft->temporary) {
        forget_draft(draft);
        mx_fail(MX_ERR_MEMORY, "out of memory for a path");
        return MX_ERR_MEMORY;
    }
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) { /* a rename would replace even /dev/null */
        forget_draft(draft);
        return mx_fail(MX_ERR_IO, "cannot write '%s': it is %s, not a file", path,
                       S_ISDIR(about.st_mode) ? "a folder" : "a pipe or device");
    }
    mx_process me = mx_process_self();
    char tag[MX_PROCESS_TAG];
    mx_process_tag(&me, tag);
    remove_left_over(path, &me);
    for (int try = 0; try < 1000; try++) {
        snprintf(draft->temporary, room, "%s.tmp-%s-%d", path, tag, try);
        int fd = open(draft->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            close(fd);
            return MX_OK;
        }
        if (errno != EEXIST)
            break;
    }
    fail_system("write", path);
    forget_draft(draft);
    return MX_ERR_IO;
}

void mx_draft_discard(mx_draft *draft)
{
    if (draft->temporary)
        unlink(draft->temporary);
    forget_draft(draft);
}

static mx_status sync_path(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return fail_system("open", path);
    mx_status status = MX_OK;
    /* EINVAL: a file system that cannot sync a folder. */
    if (fsync(fd) != 0 && errno != EINVAL)
        status = fail_system("sync", path);
    close(fd);
    return status;
}

static mx_status sync_folder_of(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return sync_path(".", O_RDONLY | O_DIRECTORY);
    if (slash == path)
        return sync_path("/", O_RDONLY | O_DIRECTORY);
    *slash = 0;
    mx_status status = sync_path(path, O_RDONLY | O_DIRECTORY);
    *slash = '/';
    return status;
}

mx_status mx_draft_commit(mx_draft *draft)
{
    mx_status status = sync_path(draft->temporary, O_RDWR);
    if (status == MX_OK && rename(draft->temporary, draft->path) != 0)
        status = fail_system("write", draft->path);
    if (status != MX_OK) {
        mx_draft_discard(draft);
        return status;
    }
    status = sync_folder_of(draft->path);
    forget_draft(draft);
    return status;
}

mx_status mx_draft_write_at(const mx_draft *draft, int64_t offset, const void *data, int64_t bytes)
{
    int fd = open(draft->temporary, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return fail_system("write", draft->path);
    mx_status status = mx_file_write_at(fd, draft->path, offset, data, bytes);
    if (close(fd) != 0 && status == MX_OK)
        status = fail_system("write", draft->path);
    return status;
}

mx_status mx_file_write(const char *path, const void *data, size_t bytes)
{
    mx_draft draft;
    MX_TRY(mx_draft_open(&draft, path));
    mx_status status = mx_draft_write_at(&draft, 0, data, (int64_t)bytes);
    if (status == MX_OK)
        return mx_draft_commit(&draft);
    mx_draft_discard(&draft);
    return status;
}

mx_status mx_file_write_unsynced(const char *path, const void *data, size_t bytes)
{
    mx_draft draft;
    MX_TRY(mx_draft_open(&draft, path));
    mx_status status = mx_draft_write_at(&draft, 0, data, (int64_t)bytes);
    if (status == MX_OK && rename(draft.temporary, path) != 0)
        status = fail_system("write", path);
    if (status != MX_OK)
        mx_draft_discard(&draft);
    else
        forget_draft(&draft);
    return status;
}

mx_status mx_file_check_writable(const char *path)
{
    if (path[0] == '\0')
        return mx_fail(MX_ERR_IO, "cannot write '': expected the name of a file");
    mx_draft draft;
    MX_TRY(mx_draft_open(&draft, path));
    mx_draft_discard(&draft);
    return MX_OK;
}
