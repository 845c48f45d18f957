/* Parallel regions of one thread.
 *
 * A region of OpenMP with one thread, such as `omp parallel for if (n >= MX_PARALLEL_FROM)` makes of a small tensor,
 * still costs libgomp a team, and at its end a system call that wakes nobody: together about as much as the rest of a
 * small operation. The linker (--wrap in the Makefile) sends each region here first. Outside other regions its function
 * is simply called: omp_get_thread_num() is 0 and omp_get_num_threads() is 1 there as well. */
#include <omp.h>

/* libgomp's, which the compiler calls for `omp parallel`; threads 0: as many as the program may use. */
void __real_GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);

void __wrap_GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags)
{
    int wanted = threads ? (int)threads : omp_get_max_threads();
    if (wanted == 1 && omp_get_level() == 0)
        body(data);
    else
        __real_GOMP_parallel(body, data, threads, flags);
}
