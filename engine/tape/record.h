/* The inside of tapes, shared by the files of this folder: records and regions. */
#ifndef MX_TAPE_RECORD_H
#define MX_TAPE_RECORD_H

#include "tape/tape.h"

typedef struct mx_region {
    int refs;                 /* its records, the regions inside, and 1 while it is open */
    mx_tape *tape;            /* while open */
    struct mx_region *parent; /* around it on its tape, or NULL */
    struct mx_region *outer;  /* while open: opened before it on any tape and still open, or NULL */
    uint64_t first, last;     /* numbers of its records: first <= number < last, those of inner regions among them */
    bool drops;               /* a policy that keeps less than what is held */
    mx_scope *scope;          /* while open */
    const mx_remat_policy *policy; /* while open */
} mx_region;

/* One recorded call. There are very many: with 16 bytes more, recording small operations took a quarter longer. */
typedef struct mx_node {
    mx_call call;                   /* owns a reference to each input and output */
    struct mx_node *before, *after; /* its neighbours on the tape */
    uint64_t number;                /* rises from record to record, over all tapes */
    uint64_t walk;                  /* the last backward of the tape that reached it */
    mx_tape *tape;
    mx_region *region;            /* innermost region in which it was recorded, or NULL */
    const char *place;            /* mx_place at that time */
    mx_site site;                 /* the script's line */
    uint16_t wants;               /* bit i: input i required a gradient then */
    uint16_t holds_in, holds_out; /* bit i: the values of input (output) i are held */
    uint16_t stale_in;            /* bit i: input i, computed before, had been changed in place since */
    bool runs_again;              /* inside rematerialisation */
    bool dead;                    /* nobody refers to its results: about to be forgotten */
    struct mx_node *next_dead;
    uint32_t changes[MX_MAX_INPUTS]; /* of the storages of inputs that are leaves, then */
} mx_node;
_Static_assert(MX_MAX_INPUTS <= 16, "a bit for each input");

struct mx_tape {
    mx_tape *previous, *next; /* in the list of all tapes, which begins with the default one */
    mx_site site;             /* the line that made it */
    int entered;
    mx_tape_hooks hooks;
    mx_region *region; /* the innermost open region, or NULL */
    mx_node *first, *last;
    bool offloads;                /* values of recorded calls may be away */
    uint64_t walk;                /* the number of the current or last backward */
    int prefetch_regions;         /* that many ahead; 0: none */
    const mx_region *ahead_of;    /* inside backward: the region for which that was done last */
    const mx_region *fetched_for; /* the region for which mx_remat_fetch was done last */
};

/* What all tapes share. */
typedef struct mx_tapes {
    mx_tape default_tape;
    mx_tape *current;
    mx_tape *walking;  /* the one inside backward, else NULL */
    mx_region *region; /* opened last on any tape and still open, or NULL */
    bool recording;
    uint64_t count;  /* calls recorded so far */
    uint64_t walked; /* as many at the last backward */
} mx_tapes;
extern mx_tapes mx_all_tapes;

/* The hooks of mx_apply. */
mx_status mx_tape_record(mx_call *call);
bool mx_tape_may_read(const mx_tensor *t);

void mx_tape_forget(mx_node *node);           /* takes it off the tape: its vjp is done or will never be asked for */
void mx_tape_drop_unreferenced(mx_tensor *t); /* the hook of mx_release and scopes */

/* Calls `visit` for each input and output whose values the record holds; once for each time. */
void mx_node_for_each_held(const mx_node *node, void (*visit)(mx_tensor *t));

/* Lets the values go that nothing needs: for good where nothing holds them, else where a policy has dropped or
 * offloaded them. */
void mx_tape_settle(mx_tensor *t);
void mx_tape_unhold(mx_tensor *t); /* one reader less, then mx_tape_settle */

void mx_region_release(mx_region *region);
/* The innermost region around the record whose policy drops values, or NULL. */
mx_region *mx_region_dropping(const mx_node *node);

/* ---- rematerialisation, inside backward ---- */

/* Starts the gathers of the regions that backward comes to after the one of the record. */
mx_status mx_remat_prefetch(mx_node *node);

/* On entering the region of the record: starts fetching what is away of its values, and of the region's that backward
 * comes to next. */
mx_status mx_remat_fetch(mx_node *node);

/* Makes sure that what the vjp of the record reads has values. */
mx_status mx_remat_ensure(mx_node *node);

/* Fails when the values of input i are not those that the call saw when it was recorded. */
mx_status mx_node_check_input(const mx_node *node, int i, const char *reads);

#endif
