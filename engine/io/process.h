/* Processes by name: who left a file behind, and whether that process still runs. Nothing here fails. */
#ifndef MX_IO_PROCESS_H
#define MX_IO_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A process, told apart from every other one, on this machine and on others. */
typedef struct mx_process {
    char host[256];
    char boot[64], space[64]; /* of the machine's start, of the process numbers (a container's); may be "" */
    int64_t pid, start;       /* start: in the system's ticks; tells a number that is used again. 0: not known */
} mx_process;

mx_process mx_process_self(void);

/* Whether `p` would be seen here: same start of the same machine, same process numbers. */
bool mx_process_is_near(const mx_process *p, const mx_process *me);

/* Whether a process that is near still runs. */
bool mx_process_is_alive(const mx_process *p);

/* Whether `p` seems to be of this machine before it was started again: same name of the host, another start. */
bool mx_process_is_before_reboot(const mx_process *p, const mx_process *me);

/* Replaces what is not printable ASCII, quotes and backslashes by '_'. */
void mx_process_plain(char *text);

/* A process as a part of a file's name: "HOST-BOOT-PID-START", the first two as hashes of 8 digits. */
enum { MX_PROCESS_TAG = 64 };
void mx_process_tag(const mx_process *p, char tag[MX_PROCESS_TAG]);

/* Whether a name that starts with such a tag is of a process that has certainly ended. `idle_s`: seconds since that
 * process last wrote; what was written before this machine was started again is judged by it. */
bool mx_process_tag_is_stale(const char *name, const mx_process *me, double idle_s);

#endif
