/* Identifies processes: which process left a file behind, and whether it still runs. Nothing here fails. */
#ifndef MX_IO_PROCESS_H
#define MX_IO_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Identifies a process on this machine or another one. */
typedef struct mx_process {
    char host[256];
    char boot[64], space[64]; /* ids of the machine's boot and of the PID namespace (of a container); may be "" */
    int64_t pid, start;       /* start: in system ticks, because process ids are used again. 0: not known */
} mx_process;

mx_process mx_process_self(void);

/* Whether this process can see `p`: same boot of the same machine, same PID namespace. */
bool mx_process_is_near(const mx_process *p, const mx_process *me);

/* Whether a process still runs for which mx_process_is_near holds. */
bool mx_process_is_alive(const mx_process *p);

/* Whether `p` seems to be from before a restart of this machine: same host name, another boot. */
bool mx_process_is_before_reboot(const mx_process *p, const mx_process *me);

/* Replaces quotes, backslashes and everything but printable ASCII by '_'. */
void mx_process_plain(char *text);

/* A process as part of a file name: "HOST-BOOT-PID-START", the first two as hashes of 8 digits. */
enum { MX_PROCESS_TAG = 64 };
void mx_process_tag(const mx_process *p, char tag[MX_PROCESS_TAG]);

/* Whether a file name starts with the tag of a process that has certainly ended. `idle_s`, the seconds since that
 * process last wrote, decides for processes from before a restart of this machine. */
bool mx_process_tag_is_stale(const char *name, const mx_process *me, double idle_s);

#endif
