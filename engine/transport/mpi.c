#define _GNU_SOURCE
#include "transport/mpi.h"

#include "core/cpu.h"
#include "core/device.h"
#include "core/limits.h"
#include "core/stop.h"
#include "transport/board.h"
#include "transport/flag.h"
#include "transport/guardian.h"
#include "transport/peers.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks = 1, node_ranks = 1, node_cores = 1, thread_level;
static int *node_of; /* for each rank: the lowest rank on its node */

int mx_rank(void) { return mx_device_current->rank; }

int mx_ranks(void) { return mx_device_current->ranks; }

int mx_processes(void) { return ranks; }

int mx_node_ranks(void) { return node_ranks; }

int mx_node_cores(void) { return node_cores; }

mx_status mx_mpi_check(int code, const char *what)
{
    if (code == MPI_SUCCESS)
        return MX_OK;
    char text[MPI_MAX_ERROR_STRING];
    int bytes = 0;
    if (MPI_Error_string(code, text, &bytes) != MPI_SUCCESS)
        snprintf(text, sizeof text, "MPI error %d", code);
    return mx_fail(MX_ERR_MPI, "%s: %s", what, text);
}

/* A communicator of the ranks of this node: of the machine, or of MXLUA_NODE_RANKS ranks on it. */
static mx_status split_node(MPI_Comm *node)
{
    MPI_Comm machine;
    const char *limit = getenv("MXLUA_NODE_RANKS");
    int most = limit ? atoi(limit) : 0;
    MX_TRY(mx_mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
                        "finding the ranks of this machine"));
    if (most < 1) {
        *node = machine;
        return MX_OK;
    }
    int code = MPI_Comm_split(machine, rank / most, rank, node);
    MPI_Comm_free(&machine);
    return mx_mpi_check(code, "finding the ranks of this machine");
}

/* Allocates the board in memory that the ranks of this node share. */
static mx_status open_board(MPI_Comm node, int place)
{
    MPI_Win window;
    void *memory;
    MPI_Aint bytes = place == 0 ? (MPI_Aint)mx_board_bytes(node_ranks) : 0;
    int unit;
    MX_TRY(mx_mpi_check(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, node, &memory, &window), "the board"));
    MX_TRY(mx_mpi_check(MPI_Win_shared_query(window, 0, &bytes, &unit, (void *)&memory), "the board"));
    mx_board_open(memory, node_ranks, place, rank);
    if (node_ranks > 1)
        MX_TRY(mx_peers_connect(node));
    MX_TRY(mx_board_connect());
    MX_TRY(mx_mpi_check(MPI_Barrier(node), "the board"));
    return mx_board_watch();
}

/* Binds each rank of the node to its share of the cores, unless the launcher has already bound the ranks. Otherwise the
 * scheduler would move ranks that wait for each other onto one core. MXLUA_BIND=0 in the environment turns this off. */
static void bind_to_share(const cpu_set_t *mine, const cpu_set_t *all, int place)
{
    const char *asked = getenv("MXLUA_BIND");
    int share = node_cores / node_ranks, skip = place * share, left = share;
    if (node_ranks == 1 || share == 0 || !CPU_EQUAL(mine, all) || (asked && strcmp(asked, "0") == 0))
        return;
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int core = 0; core < CPU_SETSIZE && left > 0; core++)
        if (CPU_ISSET(core, all) && skip-- <= 0) {
            CPU_SET(core, &own);
            left--;
        }
    sched_setaffinity(0, sizeof own, &own); /* threads that start later inherit it */
}

/* Tells the other ranks that this one ends by a signal that it handles, and has not crashed. */
static void leave_by_signal(void)
{
    mx_board_leave(MX_RANK_GONE);
    mx_guardian_dismiss();
}

/* The ranks on this node, and the union of the cores that they may use: mpirun may have bound each to its own. */
static mx_status look_at_node(void)
{
    MPI_Comm node;
    MX_TRY(split_node(&node));
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    int place, lowest = rank;
    MPI_Comm_size(node, &node_ranks);
    MPI_Comm_rank(node, &place);
    MX_TRY(mx_mpi_check(MPI_Allreduce(&mine, &all, (int)sizeof mine, MPI_BYTE, MPI_BOR, node),
                        "finding the cores of this machine"));
    node_cores = CPU_COUNT(&all) > 0 ? CPU_COUNT(&all) : mx_cpu_cores();
    bind_to_share(&mine, &all, place);
    mx_guardian_tell(rank, node_ranks);
    if (node_ranks > node_cores)
        mx_flag_set_spin_us(1);
    node_of = calloc((size_t)ranks, sizeof *node_of);
    if (!node_of)
        return mx_fail(MX_ERR_MEMORY, "no memory for %d ranks", ranks);
    MPI_Bcast(&lowest, 1, MPI_INT, 0, node);
    MX_TRY(
        mx_mpi_check(MPI_Allgather(&lowest, 1, MPI_INT, node_of, 1, MPI_INT, MPI_COMM_WORLD), "finding the machines"));
    if (ranks > 1)
        MX_TRY(open_board(node, place));
    mx_stop_before_end(leave_by_signal);
    return MX_OK;
}

bool mx_same_node(int other) { return node_of && node_of[other] == node_of[rank]; }

/* Restricts UCX to the transports that it needs. A single rank gets neither sockets nor shared memory. Ranks of one
 * machine get no sockets, to which other users could connect. System V shared memory is never used, because UCX lets
 * the user's group write it. The setting is removed from the environment afterwards, because programs that mxlua starts
 * may be launchers. */
static int start_mpi(int *argc, char ***argv)
{
    bool ours = !getenv("UCX_TLS");
    if (ours)
        setenv("UCX_TLS",
               mx_limits_launched_ranks() == 0  ? "self"
               : mx_limits_all_ranks_are_here() ? "^sysv,tcp"
                                                : "^sysv",
               1);
    int code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &thread_level);
    if (ours)
        unsetenv("UCX_TLS");
    return code;
}

mx_status mx_mpi_start(int *argc, char ***argv)
{
    mx_guardian_start();
    int code = start_mpi(argc, argv);
    if (code != MPI_SUCCESS)
        return mx_fail(MX_ERR_MPI, "MPI_Init_thread failed with code %d", code);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    mx_host.rank = rank;
    mx_host.ranks = ranks;
    const char *foreign = getenv("OMPI_COMM_WORLD_SIZE");
    if (ranks == 1 && foreign && atoi(foreign) > 1)
        return mx_fail(MX_ERR_MPI, "started by Open MPI's mpirun, but built with %s: use its mpirun (mpirun.mpich)",
                       mx_mpi_library());
    /* If srun does not support this MPI, each task becomes rank 0 of 1: N runs that write the same files. A launcher
     * that supports it sets PMI_SIZE, even for one rank. Slurm sets SLURM_STEP_NUM_TASKS in srun's steps, but not in a
     * batch script. */
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *job_tasks = getenv("SLURM_NTASKS");
    const char *task = getenv("SLURM_PROCID");
    if (ranks == 1 && !getenv("PMI_SIZE") && tasks && atoi(tasks) > 1 && job_tasks && strcmp(tasks, job_tasks) == 0)
        return mx_fail(MX_ERR_MPI,
                       "srun started %s tasks, but task %s is rank 0 of 1: use srun --mpi=pmi2, or mpirun "
                       "(for %s runs on their own, unset SLURM_STEP_NUM_TASKS)",
                       tasks, task ? task : "?", tasks);
    return look_at_node();
}

void mx_mpi_end(void)
{
    int started = 0;
    MPI_Initialized(&started);
    mx_board_leave(MX_RANK_ENDED);
    mx_board_await_all();
    mx_board_leave(MX_RANK_GONE);
    mx_guardian_dismiss();
    if (started && !mx_guardian_launcher_is_gone()) /* without a launcher, MPI_Finalize would wait for it */
        MPI_Finalize();
}

static void (*abort_hook)(void);

void mx_mpi_before_abort(void (*hook)(void)) { abort_hook = hook; }

_Noreturn void mx_mpi_abort(int exit_status)
{
    if (abort_hook)
        abort_hook();
    fflush(stdout);
    fflush(stderr);
    if (ranks == 1) {
        mx_mpi_end();
        exit(exit_status);
    }
    mx_board_leave(MX_RANK_FAILED);
    if (mx_guardian_launcher_is_gone())
        _exit(exit_status);
    /* mpirun reads the output and the abort from different pipes: give it time to read the output first. */
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    if (!freopen("/dev/null", "w", stderr)) /* MPI_Abort would add a meaningless line */
        fclose(stderr);
    mx_guardian_dismiss();
    alarm(
        5); /* in case MPI_Abort waits for an MPI call of another thread: ends this rank, and then mpirun the others */
    MPI_Abort(MPI_COMM_WORLD, exit_status);
    _Exit(exit_status);
}

const char *mx_mpi_library(void)
{
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int bytes = 0;
    MPI_Get_library_version(text, &bytes);
    char number[32];
    if (sscanf(text, "MPICH Version: %31s", number) == 1)
        snprintf(name, sizeof name, "MPICH %s", number);
    else
        snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "\n,"), text);
    return name;
}

bool mx_mpi_has_threads(void) { return thread_level == MPI_THREAD_MULTIPLE; }

const char *mx_mpi_thread_level(void)
{
    switch (thread_level) {
    case MPI_THREAD_MULTIPLE:
        return "multiple";
    case MPI_THREAD_SERIALIZED:
        return "serialized";
    case MPI_THREAD_FUNNELED:
        return "funneled";
    default:
        return "single";
    }
}
