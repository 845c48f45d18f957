/* The tape's inside, shared by the files of this folder: records and regions. */
#ifndef MX_TAPE_RECORD_H
#define MX_TAPE_RECORD_H

#include "tape/tape.h"

typedef struct mx_region {
    int refs; /* its records, the regions inside, and 1 while it is open */
    struct mx_region *parent;
    uint64_t first, last; /* numbers of its records: first <= number < last, those of inner regions among them */
    bool drops;           /* a policy that keeps less than what is held */
    mx_scope *scope;      /* while open */
    const mx_remat_policy *policy; /* while open */
} mx_region;

/* One recorded call. */
typedef struct mx_node {
    mx_call call;                    /* owns a reference to each input and output */
    struct mx_node *before, *after;  /* its neighbours on the tape */
    uint64_t number;                 /* rises from record to record */
    mx_region *region;               /* innermost region in which it was recorded, or NULL */
    const char *place;               /* mx_place at that time */
    mx_site site;                    /* the script's line */
    uint32_t wants;                  /* bit i: input i required a gradient then */
    uint32_t holds_in, holds_out;    /* bit i: the values of input (output) i are held */
    uint32_t stale_in;               /* bit i: input i, computed before, had been changed in place since */
    uint32_t changes[MX_MAX_INPUTS]; /* of the storages of inputs that are leaves, then */
    uint64_t walk;                   /* the last backward whose loss depends on it */
    bool runs_again;                 /* inside rematerialisation */
    bool dead;                       /* nobody refers to its results: about to be forgotten */
    struct mx_node *next_dead;
} mx_node;

typedef struct mx_tape {
    bool recording;
    mx_region *region; /* the innermost open region, or NULL */
    mx_node *first, *last;
    uint64_t count;               /* calls recorded so far */
    uint64_t walked;              /* as many at the last backward */
    bool offloads;                /* values of recorded calls may be away */
    bool is_walking;              /* inside backward */
    uint64_t walk;                /* the number of the current or last backward */
    int prefetch_regions;         /* that many ahead; 0: none */
    const mx_region *ahead_of;    /* inside backward: the region for which that was done last */
    const mx_region *fetched_for; /* the region for which mx_remat_fetch was done last */
} mx_tape;
extern mx_tape mx_the_tape;

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
