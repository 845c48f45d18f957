/* Teams: ranks that exchange chunks, either through memory that they share or by messages.
 *
 * Both ways have one protocol, so that each collective is written once (exchange.c). A team has two channels. On a
 * channel a rank opens a slot, fills it, gives the parts of it to the others and posts it; it takes what others gave,
 * and is done with the chunk when it needs none of that any more. Chunks are counted; all members go through the same
 * ones. A slot is used again two chunks later, so a rank may run ahead of the others by that much. */
#ifndef MX_TRANSPORT_TEAM_H
#define MX_TRANSPORT_TEAM_H

#include "core/status.h"
#include "transport/collective.h"
#include "transport/flag.h"

#include <mpi.h>
#include <stddef.h>

enum { MX_SLOT_BYTES = 128 << 10, MX_SLOTS = 2, MX_CHANNELS = 2, MX_NOTE_BYTES = 16 << 10 };

/* What a rank is about to do, which must be the same on all members. Those of `text` are for messages alone. */
typedef struct mx_tag {
    mx_collective what;
    int64_t count;
    char site[112];
    char text[112];
} mx_tag;

typedef struct mx_area mx_area;
typedef struct mx_mail mx_mail;

typedef struct mx_team {
    int n, me;
    int *ranks;      /* world ranks of the members */
    MPI_Comm comm;   /* of the members, in this order */
    mx_area **areas; /* each member's shared memory; NULL: messages */
    mx_mail *mail;   /* the state of messages; NULL: shared memory */
    uint32_t begun, met;
    uint32_t opened[MX_CHANNELS], done[MX_CHANNELS]; /* chunks */
} mx_team;

/* A team of the ranks of `comm` (which it keeps), all on this machine when `shared`. Collective among them. */
mx_status mx_team_new(MPI_Comm comm, bool shared, mx_team **out);

/* Every member comes with its tag. MX_ERR_VALUE, on all of them, when tags differ; `strict`: also in their sites. With
 * messages tags are compared only when `strict`. Collective. */
mx_status mx_team_begin(mx_team *team, const mx_tag *tag, bool strict);

/* Returns when these world ranks, of which we are number `me`, have all come here: a barrier by messages, which fails
 * where MPI's own would wait without end, for a rank that has ended or went astray. Collective among them. */
mx_status mx_meet(const int *ranks, int n, int me);

/* For a team that shares memory: each member brings a note, of at most MX_NOTE_BYTES; returns when all have. Then each
 * reads those of the others, until it leaves; `leave` returns when all others have left, too. What is written between
 * meet and leave is seen after leave, by all. Collective. */
mx_status mx_team_meet(mx_team *team, const void *note, size_t bytes);
const void *mx_team_note(const mx_team *team, int member);
mx_status mx_team_leave(mx_team *team);

/* The slot of the next chunk, MX_SLOT_BYTES large; waits until everybody is done with what it held. */
mx_status mx_team_open(mx_team *team, int channel, char **slot);

/* `bytes` of the opened slot from `offset` on are for member `to`. */
mx_status mx_team_give(mx_team *team, int channel, int to, size_t offset, size_t bytes);

/* From member `from` will come `bytes` in the opened chunk. (To be said before post; messages need to know.) */
mx_status mx_team_expect(mx_team *team, int channel, int from, size_t bytes);

void mx_team_post(mx_team *team, int channel);

/* What `from` gave in the oldest chunk that we are not done with: `offset` is where in its slot. Waits for it. */
mx_status mx_team_take(mx_team *team, int channel, int from, size_t offset, const void **data);

void mx_team_done(mx_team *team, int channel);

/* After the last chunk: waits until what this rank has given is on its way. MPI moves large messages only while it is
 * called, and our next call of it may be far away. */
mx_status mx_team_finish(mx_team *team);

#endif
