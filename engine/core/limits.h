/* The limits that the system sets to this process (ulimit, /dev/shm), checked before a library runs into them.
 *
 * OpenBLAS, libgomp, UCX and MPICH wait for ever, abort or print pages when memory, threads, files or shared memory run
 * out. Each check tries to get what they are going to ask for, and its message names the limit and a value that is
 * enough. */
#ifndef MX_CORE_LIMITS_H
#define MX_CORE_LIMITS_H

#include "core/status.h"

#include <stdbool.h>

/* To be called before the libraries' constructors, from the program's .preinit_array. Ends the process with one line
 * where the libraries would not load. Opens /dev/null for each closed one of the file descriptors 0 to 2, so that no
 * file of ours gets its number. Sets environment variables that libraries read when they are loaded, unless the user
 * has set them: it starts the program once more for that. */
void mx_limits_before_libraries(int argc, char **argv, char **environment);

/* Ranks of this machine as far as the launcher tells; 0: no launcher has started us. */
int mx_limits_launched_ranks(void);
bool mx_limits_all_ranks_are_here(void); /* of a launched run */

/* File descriptors, size of files, threads, and for launched ranks shared memory: what MPI's start needs. Ends the
 * process with one line that names the limit. To be called before MPI's start, while there is one thread. */
void mx_limits_check(void);

/* Whether so many threads can be had, with OpenBLAS's buffers for them. MX_ERR_STATE naming the limit. */
mx_status mx_limits_check_threads(int threads);

#endif
