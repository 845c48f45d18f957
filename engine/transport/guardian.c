#define _GNU_SOURCE
#include "transport/guardian.h"

#include "core/limits.h"
#include "core/stop.h"
#include "transport/board.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_BYTES = 60 << 10 }; /* a pipe holds 64 KiB */
enum {
    HOLD_MS = 700,
    REST_MS = 20,
    PARENT_MS = 1000,
    AWAIT_MS = 2000
}; /* the first is longer than two periods of the watchdog */

typedef struct news {
    int rank, node_ranks;
    int dismissed;
} news;

/* ---- the guardian ---- */

typedef struct guardian {
    pid_t rank_process, launcher;
    int signals, from_rank, from_others, connection; /* file descriptors; connection: the launcher's, -1: none */
    bool asked_to_end, launcher_is_gone;
    news last;
} guardian;

static int launcher_signal(void) { return SIGRTMIN + 4; }

static void take_news(guardian *g)
{
    news n;
    ssize_t bytes;
    while ((bytes = recv(g->from_rank, &n, sizeof n, MSG_DONTWAIT)) == (ssize_t)sizeof n) {
        int dismissed = g->last.dismissed;
        g->last = n;
        g->last.dismissed = dismissed || n.dismissed;
    }
    if (bytes == 0) { /* the rank's side of the pipe is closed: the rank is about to end */
        close(g->from_rank);
        g->from_rank = -1;
    }
}

/* Reads into `text` what another rank reports about the death of this guardian's rank. */
static size_t hear_others(const guardian *g, char *text, size_t room)
{
    struct pollfd others = {.fd = g->from_others, .events = POLLIN};
    size_t bytes = 0;
    for (int wait_ms = HOLD_MS; bytes < room && poll(&others, 1, wait_ms) == 1; wait_ms = REST_MS) {
        ssize_t got = read(g->from_others, text + bytes, room - bytes);
        if (got <= 0)
            break;
        bytes += (size_t)got;
    }
    return bytes;
}

static void tell_death(const guardian *g, int status)
{
    static char text[MOST_BYTES];
    size_t bytes = g->last.node_ranks > 1 ? hear_others(g, text, sizeof text) : 0;
    const char *how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it exited without a message";
    if (bytes == 0 && g->last.rank >= 0)
        bytes = (size_t)snprintf(text, sizeof text, "mxlua: rank %d (process %d) has died: %s; ending the run\n",
                                 g->last.rank, (int)g->rank_process, how);
    else if (bytes == 0 && WIFSIGNALED(status)) /* otherwise a library has printed why it cannot start */
        bytes = (size_t)snprintf(text, sizeof text, "mxlua: process %d has died while it started: %s; ending the run\n",
                                 (int)g->rank_process, how);
    if (write(STDERR_FILENO, text, bytes) < 0)
        _exit(EXIT_FAILURE);
}

/* If the rank has ended, ends with the rank's exit status or signal. */
static void end_with_rank(guardian *g)
{
    int status;
    if (waitpid(g->rank_process, &status, WNOHANG) != g->rank_process)
        return;
    if (g->from_rank >= 0)
        take_news(g);
    if (!g->last.dismissed && !g->asked_to_end && !g->launcher_is_gone)
        tell_death(g, status);
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void take_signal(guardian *g)
{
    struct signalfd_siginfo about;
    if (read(g->signals, &about, sizeof about) != (ssize_t)sizeof about)
        return;
    int number = (int)about.ssi_signo;
    if (number == SIGCHLD) {
        end_with_rank(g);
        return;
    }
    if (number != SIGUSR1 && number != SIGUSR2 && number != SIGCONT)
        g->asked_to_end = true;
    kill(g->rank_process, number);
}

static void note_launcher(guardian *g)
{
    if (g->last.dismissed || g->launcher_is_gone) /* after MPI's end, the launcher closes the connection itself */
        return;
    g->launcher_is_gone = true;
    kill(g->rank_process, launcher_signal());
}

static _Noreturn void guard(guardian g, const sigset_t *taken)
{
    prctl(PR_SET_NAME, "mx-guardian");
    const char *text = getenv("PMI_FD");
    g.connection = text ? atoi(text) : -1;
    g.signals = signalfd(-1, taken, SFD_CLOEXEC | SFD_NONBLOCK);
    g.last.rank = -1;
    for (;;) {
        struct pollfd p[] = {{.fd = g.signals, .events = POLLIN},
                             {.fd = g.from_rank, .events = POLLIN},
                             {.fd = g.launcher_is_gone ? -1 : g.connection, .events = POLLRDHUP}};
        /* Polls with a timeout to notice the end of the rank if there is no file descriptor for signals. */
        poll(p, 3, g.connection < 0 || g.signals < 0 ? PARENT_MS : -1);
        if (p[1].revents)
            take_news(&g);
        if (p[2].revents)
            note_launcher(&g);
        if (g.connection < 0 && getppid() != g.launcher)
            note_launcher(&g);
        if (g.signals < 0)
            end_with_rank(&g);
        else if (p[0].revents)
            take_signal(&g);
    }
}

/* ---- the rank ---- */

static int to_guardian = -1;
static pid_t guardian_process;
static mx_guardian_address address;
static volatile sig_atomic_t launcher_is_gone;
static char farewell[96];
static int farewell_bytes;

static void send_news(news n)
{
    if (to_guardian >= 0 && send(to_guardian, &n, sizeof n, MSG_NOSIGNAL) != (ssize_t)sizeof n)
        to_guardian = -1; /* the guardian is gone: continue without it */
}

void mx_guardian_dismiss(void)
{
    send_news((news){.rank = -1, .dismissed = 1});
    to_guardian = -1;
}

/* A run that can save does so, as after a SIGHUP. If the launcher kills this rank because another rank has failed, or
 * after a Ctrl-C, this rank ends at once. */
static void on_launcher_gone(int number)
{
    int before = errno;
    (void)number;
    if (launcher_is_gone)
        return;
    launcher_is_gone = 1;
    if (mx_stop_is_caught() && mx_stop_requested() != SIGINT && !mx_board_has_failed()) {
        mx_stop_request(SIGHUP);
        mx_board_hurry();
        errno = before;
        return;
    }
    mx_board_leave(MX_RANK_GONE);
    if (getppid() == guardian_process && farewell_bytes > 0 &&
        write(STDERR_FILENO, farewell, (size_t)farewell_bytes) < 0)
        _exit(EXIT_FAILURE);
    mx_guardian_dismiss();
    _exit(EXIT_FAILURE);
}

static void become_rank(const int *news_ends, const int *words, const sigset_t *signals_before)
{
    struct stat about;
    struct sigaction action = {.sa_handler = on_launcher_gone, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    guardian_process = getppid();
    setsid(); /* so that signals to the launcher's process group reach only the guardian */
    sigaction(launcher_signal(), &action, NULL);
    prctl(PR_SET_PDEATHSIG, launcher_signal());
    if (fstat(words[0], &about) == 0)
        address = (mx_guardian_address){guardian_process, words[0], about.st_ino};
    to_guardian = news_ends[1];
    close(news_ends[0]);
    close(words[0]);
    close(words[1]);
    atexit(mx_guardian_dismiss);
    sigprocmask(SIG_SETMASK, signals_before, NULL);
}

void mx_guardian_start(void)
{
    int news_ends[2], words[2];
    if (mx_limits_launched_ranks() == 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, news_ends) != 0)
        return;
    if (pipe2(words, O_CLOEXEC) != 0) {
        close(news_ends[0]);
        close(news_ends[1]);
        return;
    }
    static const int taken[] = {SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT};
    sigset_t set, all, before;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        sigaddset(&set, taken[i]);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* no signal is lost between the fork and the first poll */
    guardian g = {.launcher = getppid(), .from_rank = news_ends[0], .from_others = words[0]};
    pid_t self = getpid();
    g.rank_process = fork();
    if (g.rank_process > 0) {
        close(news_ends[1]); /* the other end stays open, so that the pipe always has a writer */
        guard(g, &set);
    }
    if (g.rank_process == 0) {
        become_rank(news_ends, words, &before);
        if (getppid() != self) /* the guardian died before this rank asked for the signal of its death */
            raise(launcher_signal());
        return;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    for (int i = 0; i < 2; i++) {
        close(news_ends[i]);
        close(words[i]);
    }
}

void mx_guardian_tell(int rank, int node_ranks)
{
    farewell_bytes =
        snprintf(farewell, sizeof farewell, "mxlua: rank %d: its launcher has ended; ending the rank\n", rank);
    send_news((news){.rank = rank, .node_ranks = node_ranks});
}

mx_guardian_address mx_guardian_of_this_rank(void) { return address; }

bool mx_guardian_launcher_is_gone(void) { return launcher_is_gone; }

bool mx_guardian_say(mx_guardian_address of, const char *text, size_t bytes)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", of.pid, of.fd);
    int fd = of.pid > 0 ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    /* The process with this id may be a different one by now. */
    bool found = fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && about.st_ino == of.inode;
    size_t most = bytes < MOST_BYTES ? bytes : MOST_BYTES;
    bool said = found && write(fd, text, most) == (ssize_t)most;
    close(fd);
    return said;
}

void mx_guardian_await_end(mx_guardian_address of)
{
    struct pollfd p = {.fd = of.pid > 0 ? (int)syscall(SYS_pidfd_open, of.pid, 0) : -1, .events = POLLIN};
    if (p.fd < 0)
        return;
    poll(&p, 1, AWAIT_MS);
    close(p.fd);
}
