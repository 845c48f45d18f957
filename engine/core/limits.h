/* Checks the system's limits for this process (ulimit, /dev/shm) before a library fails on them.
 *
 * OpenBLAS, libgomp, UCX and MPICH wait for ever, abort or print pages if memory, threads, files or shared memory run
 * out. Each check tries to get what these libraries will need, and its message names the limit and a sufficient value.
 */
#ifndef MX_CORE_LIMITS_H
#define MX_CORE_LIMITS_H

#include "core/status.h"

#include <stdbool.h>

/* To be called before the libraries' constructors, from the program's .preinit_array. Ends the process with a message
 * of one line if the libraries could not be loaded. Opens /dev/null for closed file descriptors from 0 to 2, so that
 * other files do not get their numbers. Sets environment variables that libraries read when they are loaded, unless the
 * user has set them; for that it executes the program once more. */
void mx_limits_before_libraries(int argc, char **argv, char **environment);

/* The number of ranks on this machine, as far as the launcher says; 0: there is no launcher. */
int mx_limits_launched_ranks(void);
bool mx_limits_all_ranks_are_here(void); /* of a launched run */

/* Checks what MPI's start needs: file descriptors, size of files, threads, and shared memory for launched ranks. Ends
 * the process with a message of one line that names the limit. To be called before MPI's start, while there is one
 * thread. */
void mx_limits_check(void);

/* Checks that so many threads can be started, with OpenBLAS's buffers for them. MX_ERR_STATE, naming the limit. */
mx_status mx_limits_check_threads(int threads);

#endif
