#include "mesh/reference.h"

#include "mesh/comm.h"
#include "transport/mpi.h"

#include <limits.h>

mx_status mx_reference_run(mx_exchange_kind kind, const float *in, float *out, int64_t bytes)
{
    int64_t all = bytes / (int64_t)sizeof(float), part = all / mx_ranks();
    int me = mx_rank(), n = mx_ranks();
    if (all > INT_MAX || part * n != all)
        return mx_fail(MX_ERR_VALUE, "%lld bytes are not measured: the %d ranks must divide the elements, at most %d",
                       (long long)bytes, n, INT_MAX);
    MX_TRY(mx_comm_finish()); /* this thread may call MPI only while nothing is in flight */
    MPI_Comm world = MPI_COMM_WORLD;
    switch (kind) {
    case MX_ALL_REDUCE:
        return mx_mpi_check(MPI_Allreduce(in, out, (int)all, MPI_FLOAT, MPI_SUM, world), "MPI_Allreduce");
    case MX_ALL_GATHER:
        return mx_mpi_check(MPI_Allgather(in, (int)part, MPI_FLOAT, out, (int)part, MPI_FLOAT, world), "MPI_Allgather");
    case MX_REDUCE_SCATTER:
        return mx_mpi_check(MPI_Reduce_scatter_block(in, out, (int)part, MPI_FLOAT, MPI_SUM, world),
                            "MPI_Reduce_scatter_block");
    case MX_ALL_TO_ALL:
    case MX_ALL_TO_ALL_ROWS: /* in equal parts */
        return mx_mpi_check(MPI_Alltoall(in, (int)part, MPI_FLOAT, out, (int)part, MPI_FLOAT, world), "MPI_Alltoall");
    case MX_PERMUTE:
        return mx_mpi_check(MPI_Sendrecv(in, (int)all, MPI_FLOAT, (me + 1) % n, 0, out, (int)all, MPI_FLOAT,
                                         (me + n - 1) % n, 0, world, MPI_STATUS_IGNORE),
                            "MPI_Sendrecv");
    case MX_BROADCAST:
        return mx_mpi_check(MPI_Bcast((void *)in, (int)all, MPI_FLOAT, 0, world), "MPI_Bcast");
    default:
        return mx_fail(MX_ERR_VALUE, "no such collective is measured");
    }
}
