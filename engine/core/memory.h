/* How much memory this process may use: the machine's, or less if a control group limits it, as batch systems and
 * containers do. Linux kills a process that uses more than its group may, so whoever allocates asks first. */
#ifndef MX_CORE_MEMORY_H
#define MX_CORE_MEMORY_H

#include <stdint.h>

int64_t mx_memory_bytes(void);          /* physical memory, in bytes; read once */
int64_t mx_memory_and_swap_bytes(void); /* with the machine's swap space; read once */

/* The least limit of this process's control group and the groups that hold it (cgroup versions 1 and 2), in bytes;
 * INT64_MAX: none. `root` goes before the paths of /proc and /sys: "" for the machine's own, a test's folder. */
int64_t mx_memory_group_limit(const char *root);

#endif
