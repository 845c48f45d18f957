/* The board: what each rank of this machine is doing, in memory that they share.
 *
 * It is how a rank that waits learns that the other one has ended, and what the watchdog prints: for every rank the
 * last collective that it finished and the one that it is in. */
#ifndef MX_MESH_BOARD_H
#define MX_MESH_BOARD_H

#include "core/status.h"

#include <stdint.h>
#include <stdio.h>

typedef enum mx_rank_state { MX_RANK_RUNS, MX_RANK_ENDED, MX_RANK_FAILED } mx_rank_state;

/* Opens it, in memory that the ranks of this machine share, and writes this rank's entry. mx_board_watch starts the
 * watchdog, when all have done so. */
size_t mx_board_bytes(int ranks);
void mx_board_open(void *memory, int ranks, int me, int world_rank);
mx_status mx_board_watch(void);

/* This rank is in the collective that `text` describes, on behalf of its lane; then no longer. */
void mx_board_begin(const char *text);
void mx_board_finish(void);

/* This rank needs no one any more: it has ended, or reported its failure. */
void mx_board_leave(mx_rank_state state);

/* MX_ERR_STATE when the rank, of this machine, has ended: nobody must wait for it. MX_OK when it runs, or is not here.
 */
mx_status mx_board_check(int world_rank);

/* Seconds that a collective may take before the watchdog prints the board and ends the run. 0: for ever. */
void mx_board_set_timeout(double seconds);
double mx_board_timeout(void);

void mx_board_print(FILE *file);

#endif
