#define _GNU_SOURCE
#include "io/lock.h"

#include "io/json.h"
#include "io/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How a stale lock is taken over without flock: a process may remove a stale lock only while it holds the lock
 * "PATH.break-ID", where ID is the id of the stale lock. Ids are never used twice. So a process that found a lock stale
 * and was then slow does no harm: it may remove only a lock that no longer exists. If a process is killed while it
 * holds "PATH.break-ID", that lock is broken in the same way, one level deeper. */

enum {
    ID_BYTES = 33,
    MOST_BYTES = 4096, /* of a lock's file */
    DEEPEST = 8,       /* levels of locks that break locks */
    TRIES = 100,       /* PAUSE_MS apart */
    PAUSE_MS = 50,
    HALF_WRITTEN_S = 3, /* an unreadable file older than this belongs to a killed process */
    REBOOT_S = 60,      /* a holder on this host name, active within this time, is alive or on another machine */
    LEFT_OVER_S = 3600, /* age at which files of killed processes are removed */
};

typedef enum state { FREE, OURS, ALIVE, GONE, ELSEWHERE, UNREADABLE } state;

typedef struct holder {
    state state;
    mx_process who;
    char id[ID_BYTES];
    int64_t since_s; /* seconds since the epoch */
    double silent_s; /* seconds since its last sign of life, by the file system's clock */
} holder;

struct mx_lock {
    char *path, *hint;
    char id[ID_BYTES];
    pid_t pid;
    mx_lock *next;
};

static mx_lock *held; /* the locks of this process */

static mx_status fail_system(const char *doing, const char *path)
{
    return mx_fail(MX_ERR_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

static void pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL); }

/* ---- who holds it ---- */

static state judge(const mx_process *p, const mx_process *me, double silent_s)
{
    if (mx_process_is_near(p, me)) {
        if (p->pid == me->pid && p->start == me->start)
            return OURS;
        return mx_process_is_alive(p) ? ALIVE : GONE;
    }
    return mx_process_is_before_reboot(p, me) && silent_s > REBOOT_S ? GONE : ELSEWHERE;
}

/* ---- the file ---- */

static mx_status new_id(char id[ID_BYTES])
{
    unsigned char bytes[(ID_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return mx_fail(MX_ERR_IO, "cannot draw a random number: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    return MX_OK;
}

static bool take_text(const mx_value *map, const char *key, char *text, size_t room)
{
    const mx_value *value = mx_value_get(map, key);
    if (!value || value->kind != MX_STRING || value->length >= room)
        return false;
    memcpy(text, value->text, value->length + 1);
    mx_process_plain(text);
    return true;
}

static bool take_integer(const mx_value *map, const char *key, int64_t *number)
{
    const mx_value *value = mx_value_get(map, key);
    if (!value || value->kind != MX_INT)
        return false;
    *number = value->integer;
    return true;
}

static bool parse_holder(const char *text, size_t bytes, holder *h)
{
    mx_value map = {0};
    bool good = mx_json_parse(text, bytes, "lock", &map) == MX_OK && map.kind == MX_MAP &&
                take_text(&map, "host", h->who.host, sizeof h->who.host) &&
                take_text(&map, "boot", h->who.boot, sizeof h->who.boot) &&
                take_text(&map, "process_numbers", h->who.space, sizeof h->who.space) &&
                take_text(&map, "id", h->id, sizeof h->id) && take_integer(&map, "process", &h->who.pid) &&
                take_integer(&map, "process_start", &h->who.start) && take_integer(&map, "since", &h->since_s) &&
                strspn(h->id, "0123456789abcdef") == ID_BYTES - 1;
    mx_value_free(&map);
    return good;
}

static double seconds_of(const struct timespec *t) { return (double)t->tv_sec + 1e-9 * (double)t->tv_nsec; }

/* Reads the holder of the lock; `now_s` is the time by the file system's clock. */
static mx_status read_holder(const char *path, const mx_process *me, double now_s, holder *h)
{
    *h = (holder){.state = FREE};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return MX_OK;
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        mx_status status = fd < 0 && errno != ELOOP
                               ? fail_system("read", path)
                               : mx_fail(MX_ERR_IO, "'%s' is no file of ours: remove it and start again", path);
        if (fd >= 0)
            close(fd);
        return status;
    }
    char text[MOST_BYTES];
    ssize_t got = read(fd, text, sizeof text);
    close(fd);
    h->silent_s = now_s - seconds_of(&about.st_mtim);
    h->since_s = about.st_mtim.tv_sec;
    if (got > 0 && !parse_holder(text, (size_t)got, h))
        return mx_fail(MX_ERR_IO, "'%s' is no lock of ours: remove it and start again", path);
    if (got > 0) {
        h->state = judge(&h->who, me, h->silent_s);
    } else {
        h->state = UNREADABLE;
        snprintf(h->id, sizeof h->id, "%016llx%016llx", (unsigned long long)about.st_ino,
                 (unsigned long long)about.st_mtim.tv_sec * 1000000000ULL + (unsigned long long)about.st_mtim.tv_nsec);
    }
    return MX_OK;
}

static mx_status write_whole(int fd, const char *path, const char *text, size_t bytes)
{
    ssize_t written = write(fd, text, bytes);
    if (written >= 0 && (size_t)written < bytes)
        errno = ENOSPC;
    return written == (ssize_t)bytes && (fsync(fd) == 0 || errno == EINVAL) ? MX_OK : fail_system("write", path);
}

static mx_status make_file(const char *path, const char *text, struct stat *about)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_system("write", path);
    mx_status status = write_whole(fd, path, text, strlen(text));
    if (status == MX_OK && fstat(fd, about) != 0)
        status = fail_system("examine", path);
    close(fd);
    if (status != MX_OK)
        unlink(path);
    return status;
}

/* Links the file `draft` to the name `path`, if that is free. If a file server has done so but its answer was lost, the
 * file has two names. */
static mx_status link_file(const char *draft, const char *path, const char *text, bool *taken)
{
    struct stat about;
    *taken = link(draft, path) == 0;
    if (*taken || errno == EEXIST || errno == ENOENT) {
        if (!*taken && stat(draft, &about) == 0)
            *taken = about.st_nlink == 2;
        return MX_OK;
    }
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK)
        return fail_system("write", path);
    mx_status status = make_file(path, text, &about); /* the file system has no links */
    *taken = status == MX_OK;
    return *taken || errno == EEXIST ? MX_OK : status;
}

static char *name_of(const char *path, const char *middle, const char *id)
{
    char *name = NULL;
    return asprintf(&name, "%s.%s-%s", path, middle, id) < 0 ? NULL : name;
}

/* Tries once to take the lock. *now_s: the time by the file system's clock. */
static mx_status try_once(const char *path, const mx_process *me, const char *id, bool *taken, double *now_s)
{
    char text[MOST_BYTES];
    struct stat about;
    snprintf(text, sizeof text,
             "{\"boot\":\"%s\",\"host\":\"%s\",\"id\":\"%s\",\"process\":%lld,\"process_numbers\":\"%s\","
             "\"process_start\":%lld,\"since\":%lld}\n",
             me->boot, me->host, id, (long long)me->pid, me->space, (long long)me->start, (long long)time(NULL));
    char *draft = name_of(path, "new", id);
    if (!draft)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    mx_status status = make_file(draft, text, &about);
    if (status == MX_OK) {
        *now_s = seconds_of(&about.st_mtim);
        status = link_file(draft, path, text, taken);
        unlink(draft);
    }
    free(draft);
    return status;
}

/* ---- taking ---- */

static const char *time_text(int64_t seconds, char text[64])
{
    time_t when = (time_t)seconds;
    struct tm fields;
    if (!localtime_r(&when, &fields) || strftime(text, 64, "%Y-%m-%d %H:%M:%S", &fields) == 0)
        snprintf(text, 64, "an unknown time");
    return text;
}

static mx_status refuse(const char *path, const char *hint, const holder *h)
{
    char since[64], folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    time_text(h->since_s, since);
    if (h->state == ALIVE)
        return mx_fail(MX_ERR_STATE, "%s is in use by process %lld on this host (%s) since %s; wait for its end, or %s",
                       folder, (long long)h->who.pid, h->who.host, since, hint);
    return mx_fail(
        MX_ERR_STATE,
        "%s is in use by process %lld on host %s since %s, whose last sign of life came %.0f s ago; wait for "
        "its end, or %s. If that process is certainly gone, remove %s and start again",
        folder, (long long)h->who.pid, h->who.host, since, h->silent_s > 0 ? h->silent_s : 0.0, hint, path);
}

static mx_status take(const char *path, const char *hint, const mx_process *me, int depth, char id[ID_BYTES],
                      holder *stale);

static void remove_own(const char *path, const char *id)
{
    mx_process me = mx_process_self();
    holder h;
    if (read_holder(path, &me, 0, &h) == MX_OK && strcmp(h.id, id) == 0)
        unlink(path);
}

/* Removes the stale lock, unless another process is removing it or has done so. */
static mx_status break_lock(const char *path, const mx_process *me, int depth, const holder *stale)
{
    char id[ID_BYTES];
    holder h, beneath = {0};
    char *breaker = name_of(path, "break", stale->id);
    if (!breaker)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    mx_status status = depth < DEEPEST ? take(breaker, "", me, depth + 1, id, &beneath)
                                       : mx_fail(MX_ERR_STATE, "'%s' is broken too often: remove it", path);
    if (status == MX_OK) {
        status = read_holder(path, me, 0, &h);
        if (status == MX_OK && h.state != FREE && strcmp(h.id, stale->id) == 0 && unlink(path) != 0 && errno != ENOENT)
            status = fail_system("remove", path);
        remove_own(breaker, id);
    } else if (status == MX_ERR_STATE && depth < DEEPEST) {
        status = MX_OK; /* another process removes it; then the first process to try gets the lock */
    }
    free(breaker);
    return status;
}

static mx_status take(const char *path, const char *hint, const mx_process *me, int depth, char id[ID_BYTES],
                      holder *stale)
{
    for (int i = 0; i < TRIES; i++) {
        bool taken = false;
        double now_s = 0;
        holder h;
        MX_TRY(new_id(id));
        MX_TRY(try_once(path, me, id, &taken, &now_s));
        if (taken)
            return MX_OK;
        MX_TRY(read_holder(path, me, now_s, &h));
        if (h.state == ALIVE || h.state == ELSEWHERE)
            return refuse(path, hint, &h);
        if (h.state == OURS || h.state == GONE || (h.state == UNREADABLE && h.silent_s > HALF_WRITTEN_S)) {
            MX_TRY(break_lock(path, me, depth, &h));
            *stale = h;
        }
        if (i > 0 || h.state == UNREADABLE)
            pause_briefly();
    }
    return mx_fail(MX_ERR_STATE, "'%s' cannot be taken: other processes take and leave it all the time", path);
}

/* Removes files that processes left when they were killed while taking the lock. */
static void remove_left_over(const char *path, const char *id)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    DIR *names = folder ? opendir(folder) : NULL;
    size_t length = strlen(base);
    struct stat about, mine;
    if (names && stat(path, &mine) == 0)
        for (const struct dirent *entry; (entry = readdir(names));) {
            const char *rest = strncmp(entry->d_name, base, length) == 0 ? entry->d_name + length : "";
            bool is_draft = strncmp(rest, ".new-", 5) == 0;
            if (!is_draft && (strncmp(rest, ".break-", 7) != 0 || strncmp(rest + 7, id, ID_BYTES - 1) == 0))
                continue;
            if (fstatat(dirfd(names), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
                mine.st_mtim.tv_sec - about.st_mtim.tv_sec > LEFT_OVER_S || !is_draft)
                unlinkat(dirfd(names), entry->d_name, 0);
        }
    if (names)
        closedir(names);
    free(folder);
}

static void tell_stale(const char *path, const holder *stale, char note[MX_LOCK_TEXT])
{
    char since[64];
    time_text(stale->since_s, since);
    if (stale->state == GONE)
        snprintf(note, MX_LOCK_TEXT,
                 "%s was left by process %lld (since %s), which was ended before it could remove it", path,
                 (long long)stale->who.pid, since);
    else if (stale->state == UNREADABLE)
        snprintf(note, MX_LOCK_TEXT, "%s said nothing of who holds it, and was replaced", path);
}

/* ---- held locks ---- */

static void discard(mx_lock *lock)
{
    if (!lock)
        return;
    free(lock->path);
    free(lock->hint);
    free(lock);
}

void mx_lock_release_all(void)
{
    while (held)
        mx_lock_release(held);
}

mx_status mx_lock_take(const char *path, const char *hint, mx_lock **out, char note[MX_LOCK_TEXT])
{
    static bool at_exit;
    *out = NULL;
    note[0] = '\0';
    mx_lock *lock = calloc(1, sizeof *lock);
    if (lock) {
        lock->path = strdup(path);
        lock->hint = strdup(hint);
    }
    if (!lock || !lock->path || !lock->hint) {
        discard(lock);
        return mx_fail(MX_ERR_MEMORY, "out of memory for a path");
    }
    mx_process me = mx_process_self();
    holder stale = {0};
    mx_status status = take(path, hint, &me, 0, lock->id, &stale);
    if (status != MX_OK) {
        discard(lock);
        return status;
    }
    remove_left_over(path, lock->id);
    tell_stale(path, &stale, note);
    lock->pid = getpid();
    lock->next = held;
    held = lock;
    if (!at_exit)
        at_exit = atexit(mx_lock_release_all) == 0;
    *out = lock;
    return MX_OK;
}

const char *mx_lock_id(const mx_lock *lock) { return lock->id; }

mx_status mx_lock_beat(mx_lock *lock)
{
    mx_process me = mx_process_self();
    holder h;
    if (read_holder(lock->path, &me, 0, &h) != MX_OK)
        return MX_OK;
    if (h.state == FREE) { /* removed by hand */
        holder stale;
        char id[ID_BYTES];
        mx_status status = take(lock->path, lock->hint, &me, 0, id, &stale);
        if (status == MX_OK)
            memcpy(lock->id, id, sizeof id);
        return status == MX_ERR_STATE ? status : MX_OK;
    }
    if (strcmp(h.id, lock->id) != 0)
        return h.state == UNREADABLE ? mx_fail(MX_ERR_STATE, "%s was replaced by a file of another kind", lock->path)
                                     : refuse(lock->path, lock->hint, &h);
    utimensat(AT_FDCWD, lock->path, NULL, AT_SYMLINK_NOFOLLOW);
    return MX_OK;
}

void mx_lock_release(mx_lock *lock)
{
    if (!lock)
        return;
    for (mx_lock **at = &held; *at; at = &(*at)->next)
        if (*at == lock) {
            *at = lock->next;
            break;
        }
    if (lock->pid == getpid()) /* not in a child process */
        remove_own(lock->path, lock->id);
    discard(lock);
}
