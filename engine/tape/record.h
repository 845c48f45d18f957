/* The internals of tapes: records and regions. Only for the files of this folder. */
#ifndef MX_TAPE_RECORD_H
#define MX_TAPE_RECORD_H

#include "tape/tape.h"

typedef struct mx_region {
    int refs;                 /* number of its records and inner regions, plus 1 while it is open */
    mx_tape *tape;            /* while open */
    struct mx_region *parent; /* the enclosing region on its tape, or NULL */
    struct mx_region *outer;  /* while open: the open region, on any tape, that was opened before it, or NULL */
    uint64_t first, last;     /* numbers of its records, including those of inner regions: first <= number < last */
    bool drops;               /* its policy keeps fewer values than are held */
    mx_scope *scope;          /* while open */
    const mx_remat_policy *policy; /* while open */
} mx_region;

/* What a record knows of an input at the time of the call. */
typedef struct mx_recorded {
    uint32_t changes : 29; /* of a leaf: the last bits of `changes` of its storage */
    bool wants : 1;        /* it required a gradient */
    bool holds : 1;        /* the record holds its values */
    bool stale : 1;        /* it was computed by a call and then changed in place */
} mx_recorded;
enum { MX_CHANGES_MASK = (1 << 29) - 1 };
#define MX_NO_READER UINT64_MAX         /* in mx_node.first_reader */
#define MX_HURRIES_NOT (UINT64_MAX - 1) /* likewise */

/* One recorded call. There are very many, and recording small operations takes as long as touching their memory: so the
 * call is last, with its attributes at its end, of which only those of its operation are copied. */
typedef struct mx_node {
    struct mx_node *before, *after; /* its neighbours on the tape */
    uint64_t number;                /* increases from record to record, over all tapes */
    uint64_t walk;                  /* number of the last backward of the tape that reached it */
    uint64_t first_reader; /* of a call that hurries (mx_tape_hooks): the number of the first record that reads a
                              result, after whose gradient that of the results is complete, or MX_NO_READER. Of others
                              MX_HURRIES_NOT */
    mx_tape *tape;
    mx_region *region;  /* innermost region in which it was recorded, or NULL */
    const char *place;  /* mx_place at that time */
    mx_site site;       /* the script's line */
    uint32_t holds_out; /* bit i: the values of output i are held */
    bool runs_again;    /* during rematerialisation: the call must run again */
    bool leads;         /* a target of mx_tape_grad, or an input of the first half, is among its inputs, or before */
    bool dead;          /* nothing refers to its results: about to be forgotten */
    bool waits;         /* it waits for the second half of a backward pass */
    uint32_t late;      /* while it waits: the inputs whose gradients are left; 0: all */
    struct mx_node *next_dead;
    mx_tensor **in;        /* call.in: own_in, or memory for a longer list */
    mx_recorded *recorded; /* one for each input: own_recorded, or at the end of that memory */
    mx_tensor *own_in[MX_MAX_INPUTS];
    mx_recorded own_recorded[MX_MAX_INPUTS];
    mx_call call; /* owns a reference to each input and output */
} mx_node;

struct mx_tape {
    mx_tape *previous, *next; /* in the list of all tapes, which starts with the default tape */
    mx_site site;             /* the line that created it */
    int entered;
    mx_tape_hooks hooks;
    mx_region *region; /* the innermost open region, or NULL */
    mx_node *first, *last;
    bool offloads;                /* values of recorded calls may be offloaded */
    uint64_t walk;                /* number of the current or last backward */
    bool is_walking;              /* inside backward */
    bool left_behind;             /* meanwhile a record became unreachable, and was not forgotten */
    int n_waiting;                /* records that wait for the second half of a backward pass */
    bool lost_waiting;            /* some of them were forgotten */
    int prefetch_regions;         /* number of regions to prefetch ahead; 0: none */
    const mx_region *ahead_of;    /* inside backward: the region for which prefetching was done last */
    const mx_region *fetched_for; /* the region for which mx_remat_fetch was done last */
};

/* The state that all tapes share. */
typedef struct mx_tapes {
    mx_tape default_tape;
    mx_tape *current;
    int walks;         /* tapes inside backward: a custom backward function may ask for gradients on another tape */
    mx_region *region; /* the open region, on any tape, that was opened last, or NULL */
    bool recording;
    uint64_t count;  /* number of calls recorded so far */
    uint64_t walked; /* `count` at the last backward */
} mx_tapes;
extern mx_tapes mx_all_tapes;

/* The hooks of mx_apply. */
mx_status mx_tape_record(mx_call *call);
bool mx_tape_may_read(const mx_tensor *t);

void mx_tape_forget(mx_node *node);           /* removes it: its vjp is done or will never be needed */
void mx_tape_drop_unreferenced(mx_tensor *t); /* the hook of mx_release and scopes */
void mx_tape_drop_left_behind(mx_tape *tape); /* after a walk: forgets its unreachable records */

/* One backward: the `n` records of `tape` that the roots depend on, from `first` to `last`, the newest. */
typedef struct mx_pass {
    mx_tape *tape;
    const mx_root *roots;
    int n_roots;
    mx_node *first, *last;
    int n;
    bool retain;

    /* mx_tape_grad: computes only the gradients of `targets`, and hands them on in `grads`. */
    mx_tensor *const *targets; /* NULL: the gradients of all leaves */
    int n_targets;
    bool record;
    mx_tensor **grads;

    /* mx_tape_backward_inputs, mx_tape_backward_weights: the halves of a backward pass. */
    mx_tensor *const *inputs; /* first half: of these leaves or computed tensors; NULL: another pass */
    int n_inputs;
    bool is_second;
} mx_pass;

mx_status mx_pass_check_roots(const mx_pass *pass);

/* Marks the records that the roots depend on, and counts them. Changes nothing else. */
mx_status mx_pass_reach(mx_pass *pass);

/* With targets or inputs, after reach: sets `leads` of all reached records. */
mx_status mx_pass_find_leads(const mx_pass *pass);

/* Whether the walk computes the gradient of input i. */
bool mx_pass_wants(const mx_pass *pass, const mx_node *node, int i);

/* Calls `visit` for each input and output whose values the record holds, once per occurrence. */
void mx_node_for_each_held(const mx_node *node, void (*visit)(mx_tensor *t));

/* Releases values that are not needed: for good if nothing holds them; only from memory if a policy has dropped or
 * offloaded them. */
void mx_tape_settle(mx_tensor *t);
void mx_tape_unhold(mx_tensor *t);    /* one reader fewer, then mx_tape_settle */
void mx_tape_done_with(mx_tensor *t); /* one of the readers that backward has still to walk fewer, then the same */

/* *sum = *sum + g; takes over the reference to g. While recording, nothing is added in place. */
mx_status mx_grad_add(mx_tensor **sum, mx_tensor *g);

bool mx_grad_is_exclusive(const mx_tensor *g); /* nothing else refers to it or its values */

/* ---- backward in two halves ---- */

/* After mx_pass_find_leads of the first half: the inputs of a record whose gradients are left to the second half. */
uint32_t mx_half_late(const mx_node *node);

/* After the record's vjp in the first half, with node->late: it waits for the second half. */
mx_status mx_half_keep(mx_node *node);

/* In place of the record's vjp in the first half: the gradients of its results are not complete, so it waits. */
mx_status mx_half_put_off(mx_node *node);

/* Fails if values have changed that waiting records read. */
mx_status mx_half_check(const mx_tape *tape);

void mx_half_abandon(mx_node *node);     /* a waiting record is about to be forgotten: its gradients are lost */
void mx_half_abandon_all(mx_tape *tape); /* after a failure: forgets all waiting records */

/* ---- gradients that are recorded ---- */

/* Whether the gradients of gradients of the operation are those of its composition. */
bool mx_op_is_plain(const mx_op *op);

/* Gradients that are recorded themselves. They come from vjp_recorded of the operation. If it has none, its composition
 * is computed again while it is recorded, and its gradients are taken. */
mx_status mx_vjp_recorded(mx_vjp *v);

void mx_region_release(mx_region *region);
/* The innermost region around the record whose policy drops values, or NULL. */
mx_region *mx_region_dropping(const mx_node *node);

/* ---- rematerialisation, inside backward ---- */

/* Prefetches the gathers of the regions that backward visits after the record's region. */
mx_status mx_remat_prefetch(mx_node *node);

/* On entering the record's region: prefetches the offloaded values of this region and of the next one in backward. */
mx_status mx_remat_fetch(mx_node *node);

/* Makes sure that the tensors that the record's vjp reads have values. */
mx_status mx_remat_ensure(mx_node *node);

/* The same for all inputs: a composition reads also those that vjp does not, and that the tape does not hold. Fails if
 * the values of one have changed or were released. */
mx_status mx_remat_ensure_inputs(mx_node *node);

/* Fails if the values of input i have changed since the call was recorded. */
mx_status mx_node_check_input(const mx_node *node, int i, const char *reads);
mx_status mx_node_fail_changed(const mx_node *node, const mx_tensor *t, const char *reads);

#endif
