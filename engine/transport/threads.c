#include "transport/threads.h"

#include "core/cpu.h"
#include "core/limits.h"
#include "transport/mpi.h"

#include <cblas.h>
#include <mpi.h>
#include <omp.h>
#include <stdlib.h>

enum { MOST_THREADS = 1024 };

int mx_threads_standard(void)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    if (asked && atoi(asked) > 0)
        return atoi(asked) < MOST_THREADS ? atoi(asked) : MOST_THREADS;
    int threads = mx_node_cores() / mx_node_ranks();
    if (threads > mx_cpu_cores())
        threads = mx_cpu_cores();
    return threads > 1 ? threads : 1;
}

mx_status mx_threads_use(int threads)
{
    if (threads < 1 || threads > MOST_THREADS)
        return mx_fail(MX_ERR_VALUE, "%d threads asked for; expected 1 to %d", threads, MOST_THREADS);
    MX_TRY(mx_limits_check_threads(threads));
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
    mx_cpu_flush_denormals();
    return MX_OK;
}

int mx_threads(void) { return omp_get_max_threads(); }

mx_status mx_threads_per_core(double *most)
{
    double mine = (double)mx_threads() * mx_node_ranks() / mx_node_cores();
    return mx_mpi_check(MPI_Allreduce(&mine, most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "counting threads");
}
