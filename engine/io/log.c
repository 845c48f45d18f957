#define _GNU_SOURCE
#include "io/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PIPE_TRIES = 200, PAUSE_MS = 50 };

static mx_status fail_system(const char *doing, const char *path)
{
    return mx_fail(MX_ERR_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

/* ---- opening ---- */

/* The number of this program's stream that a path names; -1: none. Opening /dev/stdout by name would empty a file
 * behind it and write from its start. */
static int own_stream(const char *path)
{
    static const char *const names[] = {"/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(path, names[i]) == 0)
            return 1 + i % 2;
    return -1;
}

/* Retries for a while, because the reader of a pipe may need time to open it. A blocking open would wait for ever if no
 * reader came. */
static int open_pipe(const char *path)
{
    for (int i = 0; i < PIPE_TRIES; i++) {
        int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0) {
            fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
            return fd;
        }
        if (errno != ENXIO && errno != EINTR)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
    errno = ENXIO;
    return -1;
}

static mx_status open_path(mx_log *log, const char *path, bool append)
{
    struct stat about = {0};
    bool is_there = stat(path, &about) == 0;
    int stream = own_stream(path);
    if (stream > 0) {
        log->fd = fcntl(stream, F_DUPFD_CLOEXEC, 3);
    } else if (is_there && (S_ISBLK(about.st_mode) || S_ISSOCK(about.st_mode) || S_ISDIR(about.st_mode))) {
        return mx_fail(MX_ERR_IO, "cannot write '%s': it is a %s, not a file", path,
                       S_ISBLK(about.st_mode)    ? "disk"
                       : S_ISSOCK(about.st_mode) ? "socket"
                                                 : "folder");
    } else if (is_there && S_ISFIFO(about.st_mode)) {
        log->fd = open_pipe(path);
        if (log->fd < 0 && errno == ENXIO)
            return mx_fail(MX_ERR_IO, "cannot write '%s': nobody reads this pipe", path);
    } else {
        int emptied = append || (is_there && !S_ISREG(about.st_mode)) ? 0 : O_TRUNC;
        log->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | O_NOCTTY | emptied, 0666);
    }
    return log->fd >= 0 ? MX_OK : fail_system("write", path);
}

static mx_status open_own(mx_log *log, const char *path)
{
    struct stat about;
    log->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (log->fd < 0)
        return errno == ELOOP ? mx_fail(MX_ERR_IO,
                                        "cannot write '%s': it is a symbolic link, and a run writes into "
                                        "files of its own folder only; remove the link",
                                        path)
                              : fail_system("write", path);
    if (fstat(log->fd, &about) != 0)
        return fail_system("examine", path);
    return S_ISREG(about.st_mode) ? MX_OK : mx_fail(MX_ERR_IO, "cannot write '%s': it is no file; remove it", path);
}

static mx_status finish_open(mx_log *log, mx_status status)
{
    if (status == MX_OK)
        return MX_OK;
    if (log->fd >= 0)
        close(log->fd);
    free(log->path);
    *log = (mx_log){.fd = -1};
    return status;
}

mx_status mx_log_open(mx_log *log, const char *path, bool append)
{
    *log = (mx_log){.path = strdup(path), .fd = -1};
    if (!log->path)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    return finish_open(log, open_path(log, path, append));
}

mx_status mx_log_open_own(mx_log *log, const char *path)
{
    *log = (mx_log){.path = strdup(path), .fd = -1};
    if (!log->path)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    return finish_open(log, open_own(log, path));
}

/* ---- lines ---- */

/* Writes the parts; *done is the number of bytes written. */
static mx_status write_parts(const mx_log *log, struct iovec *parts, int n, size_t *done)
{
    *done = 0;
    while (n > 0) {
        ssize_t written = writev(log->fd, parts, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_system("write", log->path);
        *done += (size_t)written;
        for (; n > 0 && (size_t)written >= parts->iov_len; n--, parts++)
            written -= (ssize_t)parts->iov_len;
        if (n > 0) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
    return MX_OK;
}

static void take_back(const mx_log *log, size_t bytes)
{
    struct stat about;
    if (bytes > 0 && fstat(log->fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= (off_t)bytes)
        (void)!ftruncate(log->fd, about.st_size - (off_t)bytes);
}

/* Writes with SIGPIPE blocked: if the reader of a pipe has left, that is an error and must not kill the process. */
static mx_status put(const mx_log *log, struct iovec *parts, int n)
{
    if (log->fd < 0)
        return mx_fail(MX_ERR_STATE, "the log is closed");
    size_t done;
    sigset_t broken, before, pending;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    mx_status status = write_parts(log, parts, n, &done);
    if (status != MX_OK && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != MX_OK)
        take_back(log, done);
    return status;
}

mx_status mx_log_line(mx_log *log, const char *text, size_t bytes)
{
    return put(log, (struct iovec[]){{(void *)text, bytes}, {"\n", 1}}, 2);
}

mx_status mx_log_bytes(mx_log *log, const char *data, size_t bytes)
{
    return put(log, (struct iovec[]){{(void *)data, bytes}}, 1);
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
