#define _GNU_SOURCE
#include "mesh/mpi.h"

#include "core/cpu.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE_BYTES = 4 << 20 }; /* MPICH is several times faster on pieces that stay in cache */

static int rank, ranks = 1, node_ranks = 1, node_cores = 1, thread_level;

int mx_rank(void) { return rank; }

int mx_ranks(void) { return ranks; }

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

/* Ranks on this machine, and the union of the cores that they are allowed: mpirun may have bound each to its own. */
static mx_status look_at_node(void)
{
    MPI_Comm node;
    MX_TRY(mx_mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
                        "finding the ranks of this machine"));
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    MPI_Comm_size(node, &node_ranks);
    int code = MPI_Allreduce(&mine, &all, (int)sizeof mine, MPI_BYTE, MPI_BOR, node);
    MPI_Comm_free(&node);
    node_cores = CPU_COUNT(&all) > 0 ? CPU_COUNT(&all) : mx_cpu_cores();
    return mx_mpi_check(code, "finding the cores of this machine");
}

mx_status mx_mpi_start(int *argc, char ***argv)
{
    int code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &thread_level);
    if (code != MPI_SUCCESS)
        return mx_fail(MX_ERR_MPI, "MPI_Init_thread failed with code %d", code);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *foreign = getenv("OMPI_COMM_WORLD_SIZE");
    if (ranks == 1 && foreign && atoi(foreign) > 1)
        return mx_fail(MX_ERR_MPI, "started by Open MPI's mpirun, but built with %s: use its mpirun (mpirun.mpich)",
                       mx_mpi_library());
    return look_at_node();
}

void mx_mpi_end(void)
{
    int started = 0;
    MPI_Initialized(&started);
    if (started)
        MPI_Finalize();
}

_Noreturn void mx_mpi_abort(int exit_status)
{
    fflush(stdout);
    fflush(stderr);
    if (ranks == 1) {
        mx_mpi_end();
        exit(exit_status);
    }
    /* mpirun reads our output and our abort from different pipes: let it have the former before the latter. */
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    if (!freopen("/dev/null", "w", stderr)) /* MPI_Abort would add a line to ours that says nothing */
        fclose(stderr);
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

mx_status mx_barrier(void) { return ranks == 1 ? MX_OK : mx_mpi_check(MPI_Barrier(MPI_COMM_WORLD), "barrier"); }

mx_status mx_broadcast_bytes(void *data, int64_t bytes, int root)
{
    if (ranks == 1)
        return MX_OK;
    for (int64_t done = 0; done < bytes; done += PIECE_BYTES) {
        int64_t left = bytes - done;
        int piece = left < PIECE_BYTES ? (int)left : PIECE_BYTES;
        MX_TRY(mx_mpi_check(MPI_Bcast((char *)data + done, piece, MPI_BYTE, root, MPI_COMM_WORLD), "broadcast"));
    }
    return MX_OK;
}

mx_status mx_broadcast_text(const char *text, int64_t bytes, int root, char **out, int64_t *out_bytes)
{
    *out = NULL;
    *out_bytes = rank == root && text ? bytes : -1;
    MX_TRY(mx_broadcast_bytes(out_bytes, sizeof *out_bytes, root));
    if (*out_bytes < 0)
        return MX_OK;
    char *copy = malloc((size_t)*out_bytes + 1);
    if (!copy)
        return mx_fail(MX_ERR_MEMORY, "no memory for a text of %lld bytes", (long long)*out_bytes);
    if (rank == root && text && bytes > 0)
        memcpy(copy, text, (size_t)*out_bytes);
    copy[*out_bytes] = '\0';
    mx_status status = mx_broadcast_bytes(copy, *out_bytes, root);
    if (status != MX_OK) {
        free(copy);
        return status;
    }
    *out = copy;
    return MX_OK;
}
