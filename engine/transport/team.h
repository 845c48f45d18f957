/* Teams: ranks that exchange chunks, either through shared memory or by messages.
 *
 * Shared memory and messages follow one protocol, so each collective is written once (exchange.c). A team has two
 * channels. For each chunk on a channel, a rank
 *
 * 1. opens a slot and fills it,
 * 2. gives parts of the slot to other members and posts the slot,
 * 3. takes the parts that other members gave it,
 * 4. is done with the chunk when it needs those parts no longer.
 *
 * All members go through the same sequence of chunks. A slot is used again two chunks later, so a rank may run two
 * chunks ahead of the others. */
#ifndef MX_TRANSPORT_TEAM_H
#define MX_TRANSPORT_TEAM_H

#include "core/status.h"
#include "transport/collective.h"
#include "transport/flag.h"

#include <mpi.h>
#include <stddef.h>

enum { MX_SLOT_BYTES = 128 << 10, MX_SLOTS = 2, MX_CHANNELS = 2, MX_NOTE_BYTES = 16 << 10 };

/* The collective that a rank is about to begin, for comparison between members. `text` is for messages only. */
typedef struct mx_tag {
    mx_collective what;
    int64_t count;
    mx_shape shape;    /* that all members give the first tensor; a scalar's where they may differ */
    int split, concat; /* dimensions, from 0, of the parts of the first tensor and of its result; 0 if whole */
    uint64_t shapes;   /* a hash of these of all tensors */
    char site[112];
    char text[112];
} mx_tag;

typedef struct mx_area mx_area;
typedef struct mx_mail mx_mail;

typedef struct mx_team {
    int n, me;
    int *ranks;      /* world ranks of the members */
    MPI_Comm comm;   /* the members, in this order */
    mx_area **areas; /* each member's shared memory; NULL: the team uses messages */
    mx_mail *mail;   /* state of the messages; NULL: the team shares memory */
    uint32_t begun, met;
    uint32_t opened[MX_CHANNELS], done[MX_CHANNELS]; /* number of chunks */
} mx_team;

/* A team of the ranks of `comm`, which the team keeps. `shared`: all are on this node and share memory. Collective
 * among them. */
mx_status mx_team_new(MPI_Comm comm, bool shared, mx_team **out);

/* Begins a collective and compares the members' tags; `strict` also compares their sites. MX_ERR_VALUE on all members
 * if tags differ. A team that uses messages compares only if `strict`. Collective. */
mx_status mx_team_begin(mx_team *team, const mx_tag *tag, bool strict);

/* A barrier by messages over these world ranks; this rank is number `me`. It fails if a rank has ended or is in another
 * collective, where MPI's barrier would wait for ever. Collective among them. */
mx_status mx_meet(const int *ranks, int n, int me);

/* For a team that shares memory. meet: each member publishes a note of at most MX_NOTE_BYTES; it returns when all have.
 * Members may then read each other's notes until they call leave, which returns when all have left. Memory written
 * between meet and leave is visible to all members after leave. Collective. */
mx_status mx_team_meet(mx_team *team, const void *note, size_t bytes);
const void *mx_team_note(const mx_team *team, int member);
mx_status mx_team_leave(mx_team *team);

/* Opens the slot of the next chunk, of MX_SLOT_BYTES; waits until all members are done with its previous chunk. */
mx_status mx_team_open(mx_team *team, int channel, char **slot);

/* Gives `bytes` of the opened slot, from `offset` on, to member `to`. */
mx_status mx_team_give(mx_team *team, int channel, int to, size_t offset, size_t bytes);

/* Announces that member `from` gives this rank `bytes` in the opened chunk. To be called before post: messages need it.
 */
mx_status mx_team_expect(mx_team *team, int channel, int from, size_t bytes);

void mx_team_post(mx_team *team, int channel);

/* The data that member `from` gave at `offset` of its slot, in the oldest chunk that this rank is not done with. Waits
 * for it. */
mx_status mx_team_take(mx_team *team, int channel, int from, size_t offset, const void **data);

void mx_team_done(mx_team *team, int channel);

/* After the last chunk: waits until the messages of this rank are sent. MPI sends large messages only during calls of
 * MPI, and the next call may come much later. */
mx_status mx_team_finish(mx_team *team);

#endif
