/* The board: a table in shared memory that shows what each rank of the node is doing.
 *
 * A waiting rank learns from it that the rank it waits for has ended. The watchdog prints it: for every rank, the last
 * collective and the last message that it finished, and those that it is in. */
#ifndef MX_TRANSPORT_BOARD_H
#define MX_TRANSPORT_BOARD_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Ended: the rank's script has ended, and the rank joins no more collectives. Gone: the rank may exit, because all
 * ranks have ended or a signal ends this one. Failed: the rank ends the run with an error. */
typedef enum mx_rank_state { MX_RANK_RUNS, MX_RANK_ENDED, MX_RANK_GONE, MX_RANK_FAILED } mx_rank_state;

/* Opens the board in memory that the ranks of the node share, and writes this rank's entry. When all ranks have opened
 * it, mx_board_watch starts the watchdog. */
size_t mx_board_bytes(int ranks);
void mx_board_open(void *memory, int ranks, int me, int world_rank);
mx_status mx_board_watch(void);

/* A rank may be in one of each at once, on different threads. */
typedef enum mx_board_part { MX_BOARD_COLLECTIVE, MX_BOARD_MESSAGE, MX_BOARD_PARTS } mx_board_part;

/* This rank begins the collective or message that `text` describes. The calling thread finishes it. */
void mx_board_begin(const char *text, mx_board_part part);
void mx_board_finish(void);
const char *mx_board_pending(void); /* the text given to begin by this thread; "" when it is in no collective */

/* These may be called in a signal handler. has_failed: whether a rank of this node ends the run with an error. hurry:
 * the launcher is gone, and other ranks may be gone too, so from now on the watchdog allows a collective at most half a
 * minute. */
void mx_board_leave(mx_rank_state state);
bool mx_board_has_failed(void);
void mx_board_hurry(void);

/* A rank that waits for another rank calls this every 50 ms or so, between begin and finish. MX_ERR_STATE if the other
 * rank has ended, so that waiting is pointless. MX_ERR_VALUE if the two ranks, or several ranks of this node in a
 * circle, wait for each other in different collectives. (A rank may wait for a message and compute meanwhile, so a
 * circle of messages proves nothing.) */
mx_status mx_board_check(int world_rank);

/* connect prepares for ranks of other nodes, which mx_board_check asks by messages. await_all is called when this rank
 * has ended; it returns when all ranks have ended and meanwhile answers ranks that ask. Both Collective over all ranks.
 */
mx_status mx_board_connect(void);
void mx_board_await_all(void);

/* Seconds that a collective or a message may take before the watchdog prints the board and ends the run. 0: for ever.
 */
void mx_board_set_timeout(double seconds);
double mx_board_timeout(void);

void mx_board_print(FILE *file);

#endif
