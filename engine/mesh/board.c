#define _GNU_SOURCE
#include "mesh/board.h"

#include "core/job.h"
#include "mesh/mpi.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 240, LOOK_MS = 200, GIVE_WAY_MS = 300 };

/* One rank's. Texts are written by one thread and read by the watchdogs while they may change: what is torn is only
 * printed, and each ends with a NUL that is never overwritten. */
typedef struct entry {
    _Alignas(64) _Atomic int state; /* an mx_rank_state */
    int pid;
    int world_rank;
    _Atomic int64_t begun, finished; /* collectives */
    _Atomic double since;            /* when the pending one began: CLOCK_MONOTONIC is one for the machine */
    char pending[TEXT_BYTES], last[TEXT_BYTES];
} entry;

static entry *entries;
static int n_entries, mine;
static _Atomic double timeout_s = 300;

size_t mx_board_bytes(int ranks) { return (size_t)ranks * sizeof(entry); }

void mx_board_set_timeout(double seconds) { atomic_store(&timeout_s, seconds); }

double mx_board_timeout(void) { return atomic_load(&timeout_s); }

/* Stores byte by byte, so that a reader on another thread meets no half-written word that the compiler made up. */
static void put_text(char *to, const char *from)
{
    size_t n = strnlen(from, TEXT_BYTES - 1);
    for (size_t i = 0; i < n; i++)
        __atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
    __atomic_store_n(to + n, '\0', __ATOMIC_RELEASE);
}

static void get_text(char *to, const char *from)
{
    size_t i = 0;
    for (; i < TEXT_BYTES - 1; i++) {
        to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
        if (!to[i])
            break;
    }
    to[i] = '\0';
}

void mx_board_begin(const char *text)
{
    if (!entries)
        return;
    entry *e = &entries[mine];
    put_text(e->pending, text);
    atomic_store(&e->since, mx_now());
    atomic_fetch_add(&e->begun, 1);
}

void mx_board_finish(void)
{
    if (!entries)
        return;
    entry *e = &entries[mine];
    put_text(e->last, e->pending);
    atomic_fetch_add(&e->finished, 1);
}

void mx_board_leave(mx_rank_state state)
{
    if (entries)
        atomic_store(&entries[mine].state, state);
}

static bool is_pending(const entry *e) { return atomic_load(&e->begun) > atomic_load(&e->finished); }

mx_status mx_board_check(int world_rank)
{
    for (int i = 0; i < n_entries; i++)
        if (entries[i].world_rank == world_rank && atomic_load(&entries[i].state) != MX_RANK_RUNS)
            return mx_fail(MX_ERR_STATE, "rank %d has ended, and rank %d waits for it in %s", world_rank,
                           entries[mine].world_rank, entries[mine].pending);
    return MX_OK;
}

void mx_board_print(FILE *file)
{
    double now = mx_now();
    for (int i = 0; i < n_entries; i++) {
        const entry *e = &entries[i];
        char pending[TEXT_BYTES], last[TEXT_BYTES];
        get_text(pending, e->pending);
        get_text(last, e->last);
        fprintf(file, "  rank %d: ", e->world_rank);
        if (atomic_load(&e->state) == MX_RANK_ENDED)
            fprintf(file, "has ended\n");
        else if (is_pending(e))
            fprintf(file, "waits since %.1f s in collective %lld: %s\n", now - atomic_load(&e->since),
                    (long long)atomic_load(&e->begun), pending);
        else
            fprintf(file, "is in no collective\n");
        if (last[0])
            fprintf(file, "          last finished, collective %lld: %s\n", (long long)atomic_load(&e->finished), last);
    }
}

/* ---- the watchdog ---- */

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Of the ranks that still run, the first one speaks; the others give way and only make sure that the run ends. */
static _Noreturn void end_run(bool speaks, const char *headline)
{
    if (speaks) {
        fflush(stdout);
        fprintf(stderr, "mxlua: %s\n", headline);
        mx_board_print(stderr);
    } else {
        sleep_ms(GIVE_WAY_MS);
    }
    mx_mpi_abort(EXIT_FAILURE);
}

static bool is_alive(const entry *e, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return atomic_load(&e->state) == MX_RANK_RUNS && (fd < 0 || poll(&p, 1, 0) == 0);
}

static bool am_first_alive(const int *fds)
{
    for (int i = 0; i < mine; i++)
        if (is_alive(&entries[i], fds[i]))
            return false;
    return true;
}

static void look_for_dead(const int *fds)
{
    for (int i = 0; i < n_entries; i++) {
        const entry *e = &entries[i];
        if (i == mine || is_alive(e, fds[i]) || atomic_load(&e->state) != MX_RANK_RUNS)
            continue;
        char line[160];
        snprintf(line, sizeof line, "rank %d (process %d) has died: killed, out of memory or crashed; ending the run",
                 e->world_rank, e->pid);
        end_run(am_first_alive(fds), line);
    }
}

static bool is_overdue(const entry *e, double limit)
{
    return limit > 0 && is_pending(e) && mx_now() - atomic_load(&e->since) > limit;
}

static void look_at_clock(void)
{
    double limit = mx_board_timeout();
    if (!is_overdue(&entries[mine], limit))
        return;
    bool speaks = true;
    for (int i = 0; i < mine; i++)
        speaks = speaks && !is_overdue(&entries[i], limit - 1e-3 * LOOK_MS);
    char line[160];
    snprintf(line, sizeof line, "a collective has not finished within collective_timeout_s = %g s; ending the run",
             limit);
    end_run(speaks, line);
}

static void *watch(void *argument)
{
    struct pollfd *polled = argument;
    int *fds = calloc((size_t)n_entries, sizeof *fds);
    if (!fds)
        return NULL;
    for (int i = 0; i < n_entries; i++)
        fds[i] = polled[i].fd;
    for (;;) {
        poll(polled, (nfds_t)n_entries, LOOK_MS);
        look_for_dead(fds);
        look_at_clock();
        for (int i = 0; i < n_entries; i++)
            if (polled[i].revents) /* one that has ended in order: no news any more */
                polled[i].fd = -1;
    }
    return NULL;
}

static mx_status start_watchdog(void)
{
    struct pollfd *polled = calloc((size_t)n_entries, sizeof *polled);
    if (!polled)
        return mx_fail(MX_ERR_MEMORY, "no memory for the watchdog");
    for (int i = 0; i < n_entries; i++) {
        /* Without pidfds (Linux before 5.3) a death is left to mpirun. */
        polled[i].fd = i == mine ? -1 : (int)syscall(SYS_pidfd_open, entries[i].pid, 0);
        polled[i].events = POLLIN;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int code = pthread_create(&thread, NULL, watch, polled);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return mx_fail(MX_ERR_MEMORY, "no thread for the watchdog could be started");
    pthread_setname_np(thread, "mx-watchdog");
    pthread_detach(thread);
    return MX_OK;
}

static void leave_at_exit(void) { mx_board_leave(MX_RANK_ENDED); }

void mx_board_open(void *memory, int ranks, int me, int world_rank)
{
    entries = memory;
    n_entries = ranks;
    mine = me;
    entry *e = &entries[me];
    memset(e, 0, sizeof *e);
    e->pid = getpid();
    e->world_rank = world_rank;
}

mx_status mx_board_watch(void)
{
    atexit(leave_at_exit); /* os.exit goes that way too */
    return start_watchdog();
}
