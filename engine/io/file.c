#include "io/file.h"

#include "io/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
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
    /* Not blocking: opening a pipe that nobody writes would wait for ever. */
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

static mx_status sum_of(int fd, const char *path, int64_t bytes, uint32_t *out)
{
    char end[1 << 16];
    int64_t part = bytes < (int64_t)sizeof end ? bytes : (int64_t)sizeof end;
    *out = mx_crc32c(0, &bytes, sizeof bytes);
    MX_TRY(mx_file_read_at(fd, path, 0, end, part));
    *out = mx_crc32c(*out, end, (size_t)part);
    MX_TRY(mx_file_read_at(fd, path, bytes - part, end, part));
    *out = mx_crc32c(*out, end, (size_t)part);
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

static mx_status write_all(int fd, const char *path, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_system("write", path);
        data += written;
        bytes -= (size_t)written;
    }
    return MX_OK;
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

mx_status mx_draft_open(mx_draft *draft, const char *path)
{
    size_t room = strlen(path) + 48;
    *draft = (mx_draft){.path = strdup(path), .temporary = malloc(room)};
    if (!draft->path || !draft->temporary) {
        forget_draft(draft);
        mx_fail(MX_ERR_MEMORY, "out of memory for a path");
        return MX_ERR_MEMORY;
    }
    /* The process's number makes the name ours on this machine, O_EXCL among machines that share the folder. */
    for (int try = 0; try < 1000; try++) {
        snprintf(draft->temporary, room, "%s.tmp-%ld-%d", path, (long)getpid(), try);
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

static mx_status write_draft(const mx_draft *draft, const void *data, size_t bytes)
{
    int fd = open(draft->temporary, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_system("write", draft->path);
    mx_status status = write_all(fd, draft->path, data, bytes);
    if (close(fd) != 0 && status == MX_OK)
        status = fail_system("write", draft->path);
    return status;
}

mx_status mx_file_write(const char *path, const void *data, size_t bytes)
{
    mx_draft draft;
    MX_TRY(mx_draft_open(&draft, path));
    mx_status status = write_draft(&draft, data, bytes);
    if (status == MX_OK)
        return mx_draft_commit(&draft);
    mx_draft_discard(&draft);
    return status;
}

mx_status mx_file_check_writable(const char *path)
{
    struct stat about;
    if (path[0] == '\0')
        return mx_fail(MX_ERR_IO, "cannot write '': expected the name of a file");
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return mx_fail(MX_ERR_IO, "cannot write '%s': it is %s, not a file", path,
                       S_ISDIR(about.st_mode) ? "a folder" : "a pipe or device");
    mx_draft draft;
    MX_TRY(mx_draft_open(&draft, path));
    mx_draft_discard(&draft);
    return MX_OK;
}

/* ---- logs ---- */

mx_status mx_log_open(mx_log *log, const char *path, bool append)
{
    log->fd = -1;
    log->path = strdup(path);
    if (!log->path)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    log->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC | O_APPEND), 0666);
    if (log->fd >= 0)
        return MX_OK;
    mx_status status = fail_system("write", path);
    free(log->path);
    log->path = NULL;
    return status;
}

mx_status mx_log_line(mx_log *log, const char *text, size_t bytes)
{
    if (log->fd < 0)
        return mx_fail(MX_ERR_STATE, "the log is closed");
    struct iovec parts[2] = {{(void *)text, bytes}, {"\n", 1}};
    ssize_t written;
    do
        written = writev(log->fd, parts, 2);
    while (written < 0 && errno == EINTR);
    if (written < 0)
        return fail_system("write", log->path);
    if ((size_t)written > bytes)
        return MX_OK;
    MX_TRY(write_all(log->fd, log->path, text + written, bytes - (size_t)written));
    return write_all(log->fd, log->path, "\n", 1);
}

mx_status mx_log_close(mx_log *log)
{
    if (log->fd < 0)
        return MX_OK;
    mx_status status = close(log->fd) == 0 ? MX_OK : fail_system("write", log->path);
    log->fd = -1;
    free(log->path);
    log->path = NULL;
    return status;
}
