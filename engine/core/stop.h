/* Signals that ask the process to end: SIGTERM (kill, schedulers), SIGINT (Ctrl-C), SIGHUP (a closed terminal, a
 * launcher that has ended) and SIGUSR1 (a scheduler's warning).
 *
 * Initially they end the process as usual, except SIGUSR1, which is ignored. A program that can save its work catches
 * them and calls mx_stop_requested from time to time. All functions except mx_stop_catch may be called in signal
 * handlers. */
#ifndef MX_CORE_STOP_H
#define MX_CORE_STOP_H

#include <stdbool.h>

/* To be called at the program's start. Ignores SIGUSR1, and SIGXFSZ, so that a write beyond the limit of file sizes
 * fails with an error. Signals that the parent process has set to be ignored (nohup, a shell's background jobs) stay
 * ignored. */
void mx_stop_start(void);

/* From now on the four signals only set the result of mx_stop_requested. A second SIGINT or SIGTERM ends the process at
 * once. `speaks`: the first of each kind prints a line that says so at once. SIGPIPE is ignored from now on: the same
 * Ctrl-C may have ended the reader of the output, and the run must still be saved. */
void mx_stop_catch(bool speaks);
bool mx_stop_is_caught(void);

/* The first in the list SIGTERM, SIGINT, SIGHUP, SIGUSR1 that has been received; 0: none. */
int mx_stop_requested(void);

/* Behaves as if this signal had been received. */
void mx_stop_request(int signal_number);

/* Sets a function that the signal's handler calls before a signal ends the process. */
void mx_stop_before_end(void (*leave)(void));

/* From now on SIGINT ends the process, even if it was caught before. */
void mx_stop_end_on_interrupt(void);

#endif
