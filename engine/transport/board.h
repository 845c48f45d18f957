/* The board: what each rank of this machine is doing, in memory that they share.
 *
 * It is how a rank that waits learns that the other one has ended, and what the watchdog prints: for every rank the
 * last collective that it finished and the one that it is in. */
#ifndef MX_TRANSPORT_BOARD_H
#define MX_TRANSPORT_BOARD_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Ended: its script has, and it joins no collective any more. Gone: all ranks have ended, or a signal ends this one,
 * and it may exit. Failed: it ends the run. */
typedef enum mx_rank_state { MX_RANK_RUNS, MX_RANK_ENDED, MX_RANK_GONE, MX_RANK_FAILED } mx_rank_state;

/* Opens it, in memory that the ranks of this machine share, and writes this rank's entry. mx_board_watch starts the
 * watchdog, when all have done so. */
size_t mx_board_bytes(int ranks);
void mx_board_open(void *memory, int ranks, int me, int world_rank);
mx_status mx_board_watch(void);

/* This rank is in the collective that `text` describes, on behalf of its lane; then no longer. */
void mx_board_begin(const char *text);
void mx_board_finish(void);
const char *mx_board_pending(void); /* the text of begin; "" when it is in none */

/* These may be called in a signal handler. Failed: whether a rank of this machine ends the run. Hurry: the launcher is
 * gone, and other ranks may be, too: from now on the watchdog waits half a minute at most for a collective. */
void mx_board_leave(mx_rank_state state);
bool mx_board_has_failed(void);
void mx_board_hurry(void);

/* To be called by a rank that waits for another one, every 50 ms or so, on the thread that calls MPI. MX_ERR_STATE when
 * the other one has ended: nobody must wait for it. MX_ERR_VALUE when both, or more of this machine in a circle, wait
 * for each other in different collectives. */
mx_status mx_board_check(int world_rank);

/* Prepares for ranks of other machines, which mx_board_check asks by messages. Then, when this rank has ended, returns
 * when all have; meanwhile it answers those who ask. Both Collective, over all ranks. */
mx_status mx_board_connect(void);
void mx_board_await_all(void);

/* Seconds that a collective may take before the watchdog prints the board and ends the run. 0: for ever. */
void mx_board_set_timeout(double seconds);
double mx_board_timeout(void);

void mx_board_print(FILE *file);

#endif
