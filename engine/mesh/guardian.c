#define _GNU_SOURCE
#include "mesh/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_BYTES = 128 << 10, HOLD_MS = 700 }; /* longer than a watchdog's two looks */

typedef struct news {
    int rank, node_ranks;
    int dismissed;
} news;

static int to_guardian = -1;
static pid_t guardian;

static void send_news(news n)
{
    if (to_guardian >= 0 && write(to_guardian, &n, sizeof n) != (ssize_t)sizeof n)
        to_guardian = -1; /* it has gone: then so be it */
}

/* The socket on which the guardian of a process hears, a name without a file. */
static socklen_t name_socket(struct sockaddr_un *name, int rank_process)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int bytes = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "mxlua-guardian-%d", rank_process);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

static int open_socket(int rank_process)
{
    struct sockaddr_un name;
    socklen_t bytes = name_socket(&name, rank_process);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name, bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool mx_guardian_say(int rank_process, const char *text, size_t bytes)
{
    struct sockaddr_un name;
    socklen_t name_bytes = name_socket(&name, rank_process);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    ssize_t sent = bytes <= MOST_BYTES
                       ? sendto(fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&name, name_bytes)
                       : -1;
    close(fd);
    return sent == (ssize_t)bytes;
}

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal_number) { interrupted = signal_number; }

/* Reads until the rank says goodbye, or the pipe ends because it is no more. */
static _Noreturn void guard(int from_rank, int from_others, pid_t rank_process)
{
    static char text[MOST_BYTES];
    news last = {.rank = -1};
    prctl(PR_SET_NAME, "mx-guardian");
    for (int s = 1; s < NSIG; s++)
        if (s != SIGTERM)
            signal(s, s == SIGINT ? note_interrupt : SIG_IGN); /* what a terminal sends to all is for the rank */
    while (read(from_rank, &last, sizeof last) == (ssize_t)sizeof last)
        if (last.dismissed)
            _exit(0);
    if (last.rank < 0) /* it was not yet one of us */
        _exit(1);
    struct pollfd others = {.fd = from_others, .events = POLLIN};
    ssize_t bytes = -1;
    if (last.node_ranks > 1 && poll(&others, 1, HOLD_MS) == 1)
        bytes = read(from_others, text, sizeof text);
    if (bytes <= 0)
        bytes = snprintf(text, sizeof text,
                         "mxlua: rank %d (process %d) has died: killed, out of memory or crashed; ending the run\n",
                         last.rank, (int)rank_process);
    if (!interrupted && write(STDERR_FILENO, text, (size_t)bytes) < 0) /* who interrupts us needs no news */
        _exit(2);
    _exit(1);
}

void mx_guardian_start(void)
{
    int ends[2];
    pid_t rank_process = getpid();
    bool launched = getenv("PMI_FD") || getenv("PMI_RANK") || getenv("SLURM_PROCID");
    if (!launched || pipe2(ends, O_CLOEXEC) != 0)
        return;
    int from_others = open_socket(rank_process);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        guard(ends[0], from_others, rank_process);
    }
    close(ends[0]);
    if (from_others >= 0)
        close(from_others);
    if (child < 0) {
        close(ends[1]);
        return;
    }
    guardian = child;
    to_guardian = ends[1];
    atexit(mx_guardian_dismiss);
}

void mx_guardian_tell(int rank, int node_ranks) { send_news((news){.rank = rank, .node_ranks = node_ranks}); }

void mx_guardian_dismiss(void)
{
    if (to_guardian < 0)
        return;
    signal(SIGPIPE, SIG_IGN);
    send_news((news){.dismissed = 1});
    to_guardian = -1;
    waitpid(guardian, NULL, 0);
}
