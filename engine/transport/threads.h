/* How many threads this rank computes with. OpenMP's pool is the only one: OpenBLAS shares it. */
#ifndef MX_TRANSPORT_THREADS_H
#define MX_TRANSPORT_THREADS_H

#include "core/status.h"

/* Cores of the machine / ranks on it, at least 1, at most the cores that this rank is bound to; or what the variable
 * OMP_NUM_THREADS says, when it is set. Not Collective. */
int mx_threads_standard(void);

/* From now on `threads` of them, all flushing denormals. MX_ERR_VALUE unless between 1 and 1024. Not Collective. */
mx_status mx_threads_use(int threads);

int mx_threads(void); /* Not Collective */

/* How many threads run on a core of the fullest machine, everywhere the same answer: above 1 the run is
 * oversubscribed and its times mean little. Collective. */
mx_status mx_threads_per_core(double *most);

#endif
