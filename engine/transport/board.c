#define _GNU_SOURCE
#include "transport/board.h"

#include "core/clock.h"
#include "transport/guardian.h"
#include "transport/mpi.h"

#include <mpi.h>
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

/* A waiting rank calls mx_board_check every 50 ms or so. One that has not called it for this long waits no longer. */
static const double FRESH_S = 0.3;
/* Ranks that have waited for each other for this long are deadlocked. */
static const double STUCK_S = 1;
/* Data that a rank sent before it ended may arrive after the news of its end; from other nodes even later. */
static const double GRACE_S = 0.2, FAR_GRACE_S = 0.5;
static const double HURRY_S = 30;

/* What one of a rank's threads does. */
typedef struct task {
    _Atomic int64_t begun, finished; /* number of collectives or messages */
    _Atomic double since;            /* when the pending one began: CLOCK_MONOTONIC, which all processes share */
    _Atomic int waits_for;           /* the world rank that it waits for now; -1: none */
    _Atomic double waits_since, waits_until; /* the first and the last time that it reported this wait */
    char pending[TEXT_BYTES], last[TEXT_BYTES];
} task;

/* The entry of one rank. One thread writes the texts of a task, and watchdogs read them at any time. A text that
 * changes while it is read is only printed, and its last byte is always NUL. */
typedef struct entry {
    _Alignas(64) _Atomic int state; /* an mx_rank_state */
    int pid;
    mx_guardian_address guardian;
    int world_rank;
    _Atomic double ended_at;
    task tasks[MX_BOARD_PARTS];
} entry;

static const char *const part_names[MX_BOARD_PARTS] = {"collective", "message"};

static entry *entries;
static int n_entries, mine;
static _Thread_local mx_board_part own_part; /* of this thread's pending task */
static _Atomic double timeout_s = 300;

size_t mx_board_bytes(int ranks) { return (size_t)ranks * sizeof(entry); }

void mx_board_set_timeout(double seconds) { atomic_store(&timeout_s, seconds); }

double mx_board_timeout(void) { return atomic_load(&timeout_s); }

/* Stores byte by byte, so that the compiler cannot use wider stores of which another thread would read a half. */
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

void mx_board_begin(const char *text, mx_board_part part)
{
    own_part = part;
    if (!entries)
        return;
    task *t = &entries[mine].tasks[own_part];
    put_text(t->pending, text);
    atomic_store(&t->waits_for, -1);
    atomic_store(&t->since, mx_now());
    atomic_fetch_add(&t->begun, 1);
}

void mx_board_finish(void)
{
    if (!entries)
        return;
    task *t = &entries[mine].tasks[own_part];
    put_text(t->last, t->pending);
    atomic_store(&t->waits_for, -1);
    atomic_fetch_add(&t->finished, 1);
}

static bool is_pending(const task *t) { return atomic_load(&t->begun) > atomic_load(&t->finished); }

const char *mx_board_pending(void)
{
    return entries && is_pending(&entries[mine].tasks[own_part]) ? entries[mine].tasks[own_part].pending : "";
}

void mx_board_leave(mx_rank_state state)
{
    if (!entries)
        return;
    if (state == MX_RANK_ENDED)
        atomic_store(&entries[mine].ended_at, mx_now());
    atomic_store(&entries[mine].state, state);
}

bool mx_board_has_failed(void)
{
    for (int i = 0; i < n_entries; i++)
        if (atomic_load(&entries[i].state) == MX_RANK_FAILED)
            return true;
    return false;
}

void mx_board_hurry(void)
{
    double limit = atomic_load(&timeout_s);
    if (limit == 0 || limit > HURRY_S)
        atomic_store(&timeout_s, HURRY_S);
}

/* ---- ranks of other nodes ----
 *
 * Other nodes do not share the board. A rank that waits for a rank of another node asks it once, by an empty message,
 * to report its end. A rank does not answer while its script runs. When the script has ended, the rank waits for all
 * other ranks anyway, and answers then. */

enum { MEET_BYTES = 64 << 10 }; /* messages of mx_meet in flight: some dozens of small ones */
enum { TAG_ASK = 1, TAG_ENDED = 2 };

typedef struct far_rank {
    bool asked;
    double ended_at; /* when this rank learnt of the end; 0: not yet */
} far_rank;

static MPI_Comm words = MPI_COMM_NULL; /* keeps these messages apart from all others */
static far_rank *far_ranks;            /* per world rank */
static int unanswered;
static void *buffer; /* for MPI's buffered sends */

/* The send is buffered, so it does not wait: the other rank may not call MPI for a long time. */
static void ask(int world_rank)
{
    far_ranks[world_rank].asked = true;
    if (MPI_Bsend(NULL, 0, MPI_BYTE, world_rank, TAG_ASK, words) == MPI_SUCCESS)
        unanswered++;
}

/* Receives the messages that have arrived: answers and, if this rank has `ended`, questions, which it answers. */
static void take_words(bool ended)
{
    for (;;) {
        int come = 0;
        MPI_Status from;
        MPI_Iprobe(MPI_ANY_SOURCE, ended ? MPI_ANY_TAG : TAG_ENDED, words, &come, &from);
        if (!come)
            return;
        MPI_Recv(NULL, 0, MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, words, MPI_STATUS_IGNORE);
        if (from.MPI_TAG == TAG_ASK) {
            MPI_Send(NULL, 0, MPI_BYTE, from.MPI_SOURCE, TAG_ENDED, words);
        } else {
            far_ranks[from.MPI_SOURCE].ended_at = mx_now();
            unanswered--;
        }
    }
}

static double ended_elsewhere(int world_rank)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* collectives and messages ask on different threads */
    if (!far_ranks)
        return 0;
    pthread_mutex_lock(&lock);
    if (!far_ranks[world_rank].asked)
        ask(world_rank);
    if (unanswered > 0)
        take_words(false);
    double ended = far_ranks[world_rank].ended_at;
    pthread_mutex_unlock(&lock);
    return ended;
}

/* This rank enters the barrier when all its questions are answered. So no message is left when all ranks are there. */
void mx_board_await_all(void)
{
    MPI_Request barrier = MPI_REQUEST_NULL;
    int all_here = words == MPI_COMM_NULL;
    for (long pause_us = 10; !all_here; pause_us = pause_us < 1000 ? 2 * pause_us : pause_us) {
        take_words(true);
        if (unanswered == 0 && barrier == MPI_REQUEST_NULL && MPI_Ibarrier(words, &barrier) != MPI_SUCCESS)
            return;
        if (barrier != MPI_REQUEST_NULL && MPI_Test(&barrier, &all_here, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return;
        if (!all_here)
            nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL); /* other ranks need the cores */
    }
}

mx_status mx_board_connect(void)
{
    int room = mx_ranks() * MPI_BSEND_OVERHEAD + MEET_BYTES; /* one question to each rank */
    buffer = malloc((size_t)room);
    far_ranks = calloc((size_t)mx_ranks(), sizeof *far_ranks);
    if (!far_ranks || !buffer || MPI_Buffer_attach(buffer, room) != MPI_SUCCESS)
        return mx_fail(MX_ERR_MEMORY, "no memory for %d ranks", mx_ranks());
    MX_TRY(mx_mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &words), "the board"));
    return mx_mpi_check(MPI_Comm_set_errhandler(words, MPI_ERRORS_RETURN), "the board");
}

/* ---- waiting ---- */

static int place_of(int world_rank)
{
    for (int i = 0; i < n_entries; i++)
        if (entries[i].world_rank == world_rank)
            return i;
    return -1;
}

static void note_wait(task *t, int world_rank, double now)
{
    if (atomic_load(&t->waits_for) != world_rank || now - atomic_load(&t->waits_until) > FRESH_S) {
        atomic_store(&t->waits_since, now);
        atomic_store(&t->waits_for, world_rank);
    }
    atomic_store(&t->waits_until, now);
}

static bool waits_now(const task *t, double now)
{
    return is_pending(t) && atomic_load(&t->waits_for) >= 0 && now - atomic_load(&t->waits_until) < FRESH_S;
}

/* Compares pending texts without the script line, which may differ between ranks of one collective. */
static bool same_collective(const char *a, const char *b)
{
    const char *a_end = strstr(a, " at "), *b_end = strstr(b, " at ");
    size_t a_bytes = a_end ? (size_t)(a_end - a) : strlen(a), b_bytes = b_end ? (size_t)(b_end - b) : strlen(b);
    return a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
}

/* Finds a deadlock: ranks of this node, this one among them, that wait for each other in a circle, in more than one
 * collective. (Members of one team compare their collectives themselves; these ranks are in different teams.) A rank
 * that has been in another collective all the time has given nothing to the rank that waits for it, so the long wait is
 * not just slowness. */
static mx_status check_circle(double now)
{
    char first[2][TEXT_BYTES];
    int first_rank[2] = {-1, -1}, at = mine;
    for (int hops = 0; hops < n_entries; hops++) {
        const task *t = &entries[at].tasks[MX_BOARD_COLLECTIVE];
        if (!waits_now(t, now) || now - atomic_load(&t->waits_since) < STUCK_S)
            return MX_OK;
        int next = place_of(atomic_load(&t->waits_for));
        if (next < 0)
            return MX_OK;
        if (first_rank[0] < 0) {
            get_text(first[0], t->pending);
            get_text(first[1], entries[next].tasks[MX_BOARD_COLLECTIVE].pending);
            if (!same_collective(first[0], first[1])) {
                first_rank[0] = entries[at].world_rank;
                first_rank[1] = entries[next].world_rank;
            }
        }
        at = next;
        if (at == mine)
            break;
    }
    if (at != mine || first_rank[0] < 0)
        return MX_OK;
    return mx_fail(MX_ERR_VALUE,
                   "the ranks differ: rank %d does %s, rank %d does %s, and they wait for each other; all ranks of an "
                   "axis must make the same collective calls in the same order",
                   first_rank[0], first[0], first_rank[1], first[1]);
}

mx_status mx_board_check(int world_rank)
{
    if (!entries)
        return MX_OK;
    task *t = &entries[mine].tasks[own_part];
    double now = mx_now();
    note_wait(t, world_rank, now);
    int place = place_of(world_rank);
    double ended = 0;
    if (place < 0)
        ended = ended_elsewhere(world_rank);
    else if (atomic_load(&entries[place].state) != MX_RANK_RUNS)
        ended = atomic_load(&entries[place].ended_at);
    double since = atomic_load(&t->waits_since);
    if (ended > 0 && now - (ended > since ? ended : since) >= (place < 0 ? FAR_GRACE_S : GRACE_S))
        return mx_fail(MX_ERR_STATE, "rank %d has ended, and rank %d waits for it in %s", world_rank,
                       entries[mine].world_rank, t->pending);
    return own_part == MX_BOARD_COLLECTIVE ? check_circle(now) : MX_OK;
}

/* ---- printing ---- */

static void print_task(FILE *file, const task *t, const char *name, double now)
{
    char pending[TEXT_BYTES], last[TEXT_BYTES];
    get_text(pending, t->pending);
    get_text(last, t->last);
    if (is_pending(t)) {
        fprintf(file, "waits since %.1f s ", now - atomic_load(&t->since));
        if (waits_now(t, now))
            fprintf(file, "for rank %d ", atomic_load(&t->waits_for));
        fprintf(file, "in %s %lld: %s\n", name, (long long)atomic_load(&t->begun), pending);
    } else {
        fprintf(file, "is in no %s\n", name);
    }
    if (last[0])
        fprintf(file, "          last finished, %s %lld: %s\n", name, (long long)atomic_load(&t->finished), last);
}

void mx_board_print(FILE *file)
{
    double now = mx_now();
    for (int i = 0; i < n_entries; i++) {
        const entry *e = &entries[i];
        fprintf(file, "  rank %d: ", e->world_rank);
        if (atomic_load(&e->state) != MX_RANK_RUNS) {
            fprintf(file, "has ended\n");
            continue;
        }
        print_task(file, &e->tasks[MX_BOARD_COLLECTIVE], part_names[MX_BOARD_COLLECTIVE], now);
        if (atomic_load(&e->tasks[MX_BOARD_MESSAGE].begun) > 0) {
            fprintf(file, "          ");
            print_task(file, &e->tasks[MX_BOARD_MESSAGE], part_names[MX_BOARD_MESSAGE], now);
        }
    }
}

/* ---- the watchdog ---- */

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Prints everything in one write, so that lines of other ranks do not come between. For a dead process its guardian
 * prints. */
static void say(const char *headline, const mx_guardian_address *of_the_dead)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return;
    fprintf(file, "mxlua: %s\n", headline);
    mx_board_print(file);
    if (fclose(file) == 0 && (!of_the_dead || !mx_guardian_say(*of_the_dead, text, bytes))) {
        fflush(stdout);
        fwrite(text, 1, bytes, stderr);
    }
    free(text);
}

static bool is_there(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return fd < 0 || poll(&p, 1, 0) == 0;
}

/* Only the first living rank reports. The others wait a little and then make sure that the run ends. */
static bool am_first(const int *fds)
{
    for (int i = 0; i < mine; i++)
        if (is_there(fds[i]))
            return false;
    return true;
}

static void look_for_dead(const int *fds)
{
    for (int i = 0; i < n_entries; i++) {
        const entry *e = &entries[i];
        /* Look at the process first, then at its state: a rank sets its state before it exits. */
        if (i == mine || is_there(fds[i]) || atomic_load(&e->state) >= MX_RANK_GONE)
            continue;
        char line[160];
        snprintf(line, sizeof line, "rank %d (process %d) has died: killed, out of memory or crashed; ending the run",
                 e->world_rank, e->pid);
        if (am_first(fds))
            say(line, &e->guardian);
        else
            sleep_ms(GIVE_WAY_MS);
        mx_guardian_await_end(e->guardian);
        mx_mpi_abort(EXIT_FAILURE);
    }
}

static bool is_overdue(const entry *e, double limit)
{
    for (int p = 0; p < MX_BOARD_PARTS; p++)
        if (limit > 0 && is_pending(&e->tasks[p]) && mx_now() - atomic_load(&e->tasks[p].since) > limit)
            return true;
    return false;
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
    if (speaks)
        say(line, NULL);
    if (!speaks || n_entries < mx_ranks()) /* other nodes report at the same time */
        sleep_ms(GIVE_WAY_MS);
    mx_mpi_abort(EXIT_FAILURE);
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
            if (polled[i].revents) /* it has ended normally: poll it no more */
                polled[i].fd = -1;
    }
    return NULL;
}

mx_status mx_board_watch(void)
{
    struct pollfd *polled = calloc((size_t)n_entries, sizeof *polled);
    if (!polled)
        return mx_fail(MX_ERR_MEMORY, "no memory for the watchdog");
    for (int i = 0; i < n_entries; i++) {
        /* Without pidfds (Linux before 5.3) only mpirun notices a death. */
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

void mx_board_open(void *memory, int ranks, int me, int world_rank)
{
    entries = memory;
    n_entries = ranks;
    mine = me;
    entry *e = &entries[me];
    memset(e, 0, sizeof *e);
    e->pid = getpid();
    e->guardian = mx_guardian_of_this_rank();
    e->world_rank = world_rank;
    for (int p = 0; p < MX_BOARD_PARTS; p++)
        atomic_store(&e->tasks[p].waits_for, -1);
}
