/* The number of threads that this rank computes with. OpenMP has the only thread pool: OpenBLAS shares it. */
#ifndef MX_TRANSPORT_THREADS_H
#define MX_TRANSPORT_THREADS_H

#include "core/status.h"

/* The default number of threads: OMP_NUM_THREADS if that is set; otherwise the node's cores divided by its ranks, at
 * least 1 and at most the cores that this rank is bound to. Not Collective. */
int mx_threads_standard(void);

/* Use this many threads from now on; all flush denormals. MX_ERR_VALUE unless from 1 to 1024. Not Collective. */
mx_status mx_threads_use(int threads);

int mx_threads(void); /* Not Collective */

/* Threads per core on the fullest node; the same answer on all ranks. Above 1 the run is oversubscribed, and its times
 * mean little. Collective. */
mx_status mx_threads_per_core(double *most);

#endif
