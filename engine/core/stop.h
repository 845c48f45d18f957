/* Signals that ask the process to end: SIGTERM (kill, schedulers), SIGINT (Ctrl-C), SIGHUP (a closed terminal, a
 * launcher that has ended) and SIGUSR1 (a scheduler's warning).
 *
 * At first they end the process as usual, SIGUSR1 excepted. A program that can save what it has done catches them and
 * asks mx_stop_requested now and then. All functions may be called in signal handlers, mx_stop_catch excepted. */
#ifndef MX_CORE_STOP_H
#define MX_CORE_STOP_H

#include <stdbool.h>

/* The standing at the program's start: ignores SIGUSR1, and SIGXFSZ, so that a write beyond the limit on the size of
 * files fails with an error. Notes which signals the parent has had ignored (nohup, a shell's background jobs): these
 * stay ignored. */
void mx_stop_start(void);

/* From now on the four only set what mx_stop_requested returns. A second SIGINT or SIGTERM ends the process at once.
 * `speaks`: the first SIGINT prints a line that says so. SIGPIPE is ignored from here on: whoever reads what we print
 * may be gone by the same Ctrl-C, and that is no reason not to save. */
void mx_stop_catch(bool speaks);
bool mx_stop_is_caught(void);

/* The strongest of SIGTERM, SIGINT, SIGHUP and SIGUSR1, in this order, that has come; 0: none. */
int mx_stop_requested(void);

/* As if a signal had come. */
void mx_stop_request(int signal_number);

/* Calls this before a signal ends the process, from the signal's handler. */
void mx_stop_before_end(void (*leave)(void));

/* SIGINT ends the process from now on, whatever caught it before. */
void mx_stop_end_on_interrupt(void);

#endif
