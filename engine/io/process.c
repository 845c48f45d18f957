#define _GNU_SOURCE
#include "io/process.h"

#include "io/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDLE_S = 3600 };

/* Reads the first line of a small file, "" if there is none. */
static void read_line(const char *path, char *line, size_t room)
{
    line[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, line, room - 1) : 0;
    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* Reads a process's state letter (3rd field) and start (22nd field) from /proc; false if they are not there. */
static bool read_stat(int64_t pid, char *letter, int64_t *start)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    read_line(path, line, sizeof line);
    const char *field = strrchr(line, ')'); /* the end of the 2nd field, the name, which may contain any character */
    if (!field || field[1] != ' ')
        return false;
    field += 2;
    *letter = *field;
    for (int i = 3; i < 22; i++) {
        field = strchr(field, ' ');
        if (!field)
            return false;
        field++;
    }
    *start = strtoll(field, NULL, 10);
    return true;
}

void mx_process_plain(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\')
            *text = '_';
}

mx_process mx_process_self(void)
{
    mx_process p = {.pid = getpid()};
    char letter;
    if (gethostname(p.host, sizeof p.host - 1) != 0)
        snprintf(p.host, sizeof p.host, "unknown");
    read_line("/proc/sys/kernel/random/boot_id", p.boot, sizeof p.boot);
    ssize_t got = readlink("/proc/self/ns/pid", p.space, sizeof p.space - 1);
    p.space[got > 0 ? got : 0] = '\0';
    mx_process_plain(p.host);
    mx_process_plain(p.boot);
    mx_process_plain(p.space);
    if (!read_stat(p.pid, &letter, &p.start))
        p.start = 0;
    return p;
}

bool mx_process_is_near(const mx_process *p, const mx_process *me)
{
    return strcmp(p->boot, me->boot) == 0 && strcmp(p->space, me->space) == 0 &&
           (me->boot[0] || strcmp(p->host, me->host) == 0);
}

bool mx_process_is_alive(const mx_process *p)
{
    char letter;
    int64_t start;
    if (p->pid < 1 || p->pid > INT_MAX)
        return false;
    if (read_stat(p->pid, &letter, &start)) /* Z: it has ended, but its parent has not waited for it */
        return letter != 'Z' && letter != 'X' && (p->start == 0 || start == p->start);
    return kill((pid_t)p->pid, 0) == 0 || errno != ESRCH;
}

bool mx_process_is_before_reboot(const mx_process *p, const mx_process *me)
{
    return strcmp(p->host, me->host) == 0 && p->boot[0] && me->boot[0] && strcmp(p->boot, me->boot) != 0;
}

/* ---- tags ---- */

static void hash_machine(const mx_process *p, uint32_t *host, uint32_t *boot)
{
    *host = mx_crc32c(0, p->host, strlen(p->host));
    *boot = mx_crc32c(mx_crc32c(0, p->boot, strlen(p->boot)), p->space, strlen(p->space));
}

void mx_process_tag(const mx_process *p, char tag[MX_PROCESS_TAG])
{
    uint32_t host, boot;
    hash_machine(p, &host, &boot);
    snprintf(tag, MX_PROCESS_TAG, "%08x-%08x-%lld-%lld", host, boot, (long long)p->pid, (long long)p->start);
}

bool mx_process_tag_is_stale(const char *name, const mx_process *me, double idle_s)
{
    uint32_t host, boot, my_host, my_boot;
    long long pid, start;
    if (sscanf(name, "%8x-%8x-%lld-%lld", &host, &boot, &pid, &start) != 4)
        return false;
    hash_machine(me, &my_host, &my_boot);
    if (boot == my_boot) {
        mx_process p = *me;
        p.pid = pid;
        p.start = start;
        return !mx_process_is_alive(&p);
    }
    return host == my_host && idle_s > IDLE_S;
}
