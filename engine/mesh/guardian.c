#define _GNU_SOURCE
#include "mesh/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HOLD_MS = 700 }; /* longer than a watchdog's two looks */

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

/* Reads until the rank says goodbye, or the pipe ends because it is no more. */
static _Noreturn void guard(int from_rank, pid_t rank_process)
{
    news last = {.rank = -1};
    prctl(PR_SET_NAME, "mx-guardian");
    for (int s = 1; s < NSIG; s++)
        if (s != SIGTERM)
            signal(s, SIG_IGN); /* what a terminal sends to all is for the rank */
    while (read(from_rank, &last, sizeof last) == (ssize_t)sizeof last)
        if (last.dismissed)
            _exit(0);
    char line[160];
    int bytes = snprintf(line, sizeof line,
                         "mxlua: rank %d (process %d) has died: killed, out of memory or crashed; ending the run\n",
                         last.rank, (int)rank_process);
    if (last.rank >= 0 && last.node_ranks == 1 && write(STDERR_FILENO, line, (size_t)bytes) < 0)
        _exit(1);
    nanosleep(&(struct timespec){.tv_nsec = HOLD_MS * 1000000L}, NULL);
    _exit(1);
}

void mx_guardian_start(void)
{
    int ends[2];
    pid_t rank_process = getpid();
    bool launched = getenv("PMI_FD") || getenv("PMI_RANK") || getenv("SLURM_PROCID");
    if (!launched || pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        guard(ends[0], rank_process);
    }
    close(ends[0]);
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
