#define _GNU_SOURCE
#include "transport/peers.h"

#include "core/arena.h"
#include "core/memory.h"
#include "transport/mpi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* How other ranks find a rank's arena. The file contains the mark too, to recognise a different process with this id.
 */
typedef struct invitation {
    int64_t mark;
    int world_rank, pid, fd;
} invitation;

static const int64_t GRAIN = 2 << 20,
                     MOST_ADDRESSES = (int64_t)32 << 40; /* of the 128 TiB that a process can address */

static char **places; /* for each world rank, its arena; NULL: tensors are not shared */

bool mx_peers_share(void) { return places != NULL; }

void *mx_peers_address(int world_rank, int64_t offset) { return places[world_rank] + offset; }

/* Twice the machine's memory: free space between blocks takes addresses but no memory. */
static int64_t arena_bytes(int n)
{
    int64_t bytes = 2 * mx_memory_bytes(), most = MOST_ADDRESSES / n;
    return (bytes < most ? bytes : most) / GRAIN * GRAIN;
}

static bool invite(invitation *mine, int64_t bytes)
{
    const char *asked = getenv("MXLUA_SHARE");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *mine = (invitation){.world_rank = mx_rank(), .pid = getpid(), .fd = -1};
    mine->mark = ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) ^ ((int64_t)mine->pid << 40);
    return !(asked && strcmp(asked, "0") == 0) && mx_arena_open(bytes, &mine->fd) &&
           pwrite(mine->fd, &mine->mark, sizeof mine->mark, 0) == (ssize_t)sizeof mine->mark;
}

static bool accept_from(const invitation *peer, int64_t bytes)
{
    char path[64];
    int64_t mark = 0;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", peer->pid, peer->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool found = fd >= 0 && pread(fd, &mark, sizeof mark, 0) == (ssize_t)sizeof mark && mark == peer->mark;
    if (found)
        places[peer->world_rank] = mx_arena_map(fd, bytes);
    if (fd >= 0)
        close(fd);
    return found && places[peer->world_rank];
}

/* Whether all ranks of the node say yes. Collective among them. */
static mx_status all_agree(MPI_Comm node, bool yes, bool *all)
{
    int mine = yes, least = 0;
    MX_TRY(mx_mpi_check(MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, node), "sharing tensors"));
    *all = least;
    return MX_OK;
}

static mx_status visit(MPI_Comm node, int n, const invitation *mine, int64_t bytes, bool *all)
{
    invitation *peers = calloc((size_t)n, sizeof *peers);
    places = calloc((size_t)mx_ranks(), sizeof *places);
    if (!peers || !places) {
        free(peers);
        return mx_fail(MX_ERR_MEMORY, "no memory for %d ranks", n);
    }
    bool well = true;
    mx_status status = mx_mpi_check(MPI_Allgather(mine, sizeof *mine, MPI_BYTE, peers, sizeof *mine, MPI_BYTE, node),
                                    "sharing tensors");
    for (int i = 0; status == MX_OK && well && i < n; i++)
        if (peers[i].world_rank != mine->world_rank)
            well = accept_from(&peers[i], bytes);
    free(peers);
    return status == MX_OK ? all_agree(node, well, all) : status;
}

mx_status mx_peers_connect(MPI_Comm node)
{
    int n;
    invitation mine;
    bool all = false;
    MPI_Comm_size(node, &n);
    int64_t bytes = arena_bytes(n);
    bool open = invite(&mine, bytes);
    MX_TRY(all_agree(node, open, &all));
    if (all)
        MX_TRY(visit(node, n, &mine, bytes, &all));
    if (all) {
        mx_arena_use();
        return MX_OK;
    }
    for (int i = 0; places && i < mx_ranks(); i++)
        if (places[i])
            munmap(places[i], (size_t)bytes);
    free(places);
    places = NULL;
    mx_arena_close();
    return MX_OK;
}
