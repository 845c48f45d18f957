/* Operations: everything that the engine computes is one.
 *
 * An operation is one constant mx_op in the file that holds all else about it. It says what its inputs and options
 * are called (so that Lua, mx.help and error messages need no second list), what its outputs look like, what it
 * costs, how the host computes it and what its gradient is, as further operations. mx_apply is the only way in. */
#ifndef MX_OPS_OP_H
#define MX_OPS_OP_H

#include "core/job.h"
#include "core/tensor.h"

enum { MX_MAX_INPUTS = 16, MX_MAX_OUTPUTS = 4, MX_ATTR_BYTES = 256 };

typedef struct mx_op mx_op;

/* One application of an operation. Inputs that were left out are NULL. The attributes are the operation's own struct.
 */
typedef struct mx_call {
    const mx_op *op;
    int n_in, n_out;
    mx_tensor *in[MX_MAX_INPUTS];
    mx_tensor *out[MX_MAX_OUTPUTS];
    _Alignas(16) unsigned char attr[MX_ATTR_BYTES];
} mx_call;

/* What bounds a call: the bytes that it moves, or the arithmetic of matrix products (of attention: tile by tile). */
typedef enum mx_work {
    MX_WORK_BYTES,
    MX_WORK_PRODUCT,
    MX_WORK_ATTENTION,
} mx_work;

static inline const char *mx_work_name(mx_work work)
{
    static const char *const names[] = {
        [MX_WORK_BYTES] = "bytes",
        [MX_WORK_PRODUCT] = "product",
        [MX_WORK_ATTENTION] = "attention",
    };
    return names[work];
}

/* What one call must do at the least, whatever the implementation: the roofline's numbers. */
typedef struct mx_cost {
    mx_work work;
    double m, n, k; /* of MX_WORK_PRODUCT: (m, k) by (k, n); 0: not one product of matrices */
    double flops;
    double bytes_read, bytes_written; /* each input read once, each output written once */
    double bytes_sent;                /* by this rank to others */
} mx_cost;

/* The state of one gradient computation. vjp fills grad[i] for each wanted input with a tensor that it owns one
 * reference to, or adds into sum[i] in place and leaves grad[i] NULL. It may hand on an out_grad as it is, with
 * mx_retain. The tape adds what several calls give for one tensor. */
typedef struct mx_vjp {
    const mx_call *call;
    mx_tensor *const *out_grad;    /* one per output; NULL: nothing depends on that output */
    bool want[MX_MAX_INPUTS];      /* whether a gradient for the input is asked for */
    bool retain;                   /* the tape stays: what the call has made must not be changed or dropped */
    mx_tensor *sum[MX_MAX_INPUTS]; /* gathered so far and safe to add into in place; else NULL */
    mx_tensor *grad[MX_MAX_INPUTS];
} mx_vjp;

/* dtype in which the gradient of input i is kept: f32 for a leaf (a parameter), the tensor's own elsewhere. */
static inline mx_dtype mx_vjp_dtype(const mx_vjp *v, int i)
{
    const mx_tensor *t = v->call->in[i];
    return t->node ? t->dtype : mx_dtype_accumulates_in(t->dtype);
}

typedef enum mx_attr_kind {
    MX_ATTR_BOOL,  /* bool */
    MX_ATTR_INT,   /* int64_t, at most 2^53 in size */
    MX_ATTR_DIM,   /* int64_t, a dimension: 1-based in Lua (negative counts from the end: -1 is the last), 0-based here;
                      a negative one reaches infer as it is */
    MX_ATTR_FLOAT, /* double */
    MX_ATTR_DTYPE, /* int: an mx_dtype; -1 when not given */
    MX_ATTR_ENUM,  /* int: the index in `choices` */
    MX_ATTR_SHAPE, /* mx_shape: a table of integers in Lua */
    MX_ATTR_SEED,  /* mx_seed: an integer; when not given, the next one of the stream of unseeded numbers */
    MX_ATTR_AXES,  /* uint32_t: axes of the mesh, a name or a list of names in Lua; 0 when not given: all ranks */
} mx_attr_kind;

/* The key of a random stream. One that was drawn gives numbers that no key of a script's gives. */
typedef struct mx_seed {
    int64_t key;
    int64_t draw; /* the number of the draw, from 1; 0: the script gave the key */
} mx_seed;

typedef struct mx_attr {
    const char *name;
    mx_attr_kind kind;
    size_t offset;              /* in the operation's attribute struct */
    double standard;            /* the value when not given (a shape has no dimensions then); NAN: must be given */
    const char *const *choices; /* of MX_ATTR_ENUM, NULL at the end */
    const char *doc;            /* one line */
} mx_attr;

enum {
    MX_OP_MUTATES = 1, /* changes inputs in place (`changes_in`); never recorded; has no vjp */
    MX_OP_VIEW = 2,   /* out[0] shares storage with in[0]: host sets it with mx_tensor_alias, apply allocates nothing */
    MX_OP_SOURCE = 4, /* no tensor input need be given */
    MX_OP_COLLECTIVE = 8,   /* all ranks of an axis must call it; waits by itself for values that are under way */
    MX_OP_OWN_STORAGE = 16, /* host gives out[0] its storage; apply allocates nothing */
    MX_OP_COMPOSITE = 64,   /* host applies other operations, unrecorded: they are timed and charged in its place */
    MX_OP_REGATHER = 32, /* backward does not keep its result but calls it again, whatever the policy (tape/tape.h) */
};

struct mx_op {
    const char *name; /* as in Lua: mx.NAME(inputs ..., {attributes}) */
    const char *doc;  /* one line: what it computes, with shapes */

    /* Names of the inputs in order, NULL at the end. "bias?" may be left out; "tensors..." stands for one or more. */
    const char *const *inputs;
    int n_out;
    int n_results; /* of the outputs, how many the caller sees in Lua; the rest are residuals for the vjp */
    int flags;

    const mx_attr *attrs; /* name == NULL at the end; NULL: none */
    size_t attr_bytes;    /* at most MX_ATTR_BYTES */

    /* Bit i set: the gradient reads the values of input (output) i. What no bit names, the tape does not keep. */
    uint32_t reads_in, reads_out;

    uint32_t changes_in; /* MX_OP_MUTATES: bit i set: input i is changed in place; 0: the first only */

    mx_status (*infer)(mx_call *call);    /* checks inputs and attributes, makes outputs with mx_out */
    mx_cost (*cost)(const mx_call *call); /* called after infer; reads shapes and attributes only */
    mx_status (*host)(mx_call *call);     /* inputs and outputs have values; calls kernels/ */
    mx_status (*vjp)(mx_vjp *v);          /* NULL: not differentiable */
};

static inline const void *mx_call_attr(const mx_call *call) { return call->attr; }

/* The attributes that a call is given: the operation's own struct and its size, which mx_apply checks. */
typedef struct mx_attrs {
    const void *data;
    size_t bytes;
} mx_attrs;
#define MX_ATTRS(attr) ((mx_attrs){&(attr), sizeof(attr)})
#define MX_NO_ATTRS ((mx_attrs){NULL, 0})

/* Those of a call, for another of the same operation or of one with the same struct. */
static inline mx_attrs mx_call_attrs(const mx_call *call) { return (mx_attrs){call->attr, call->op->attr_bytes}; }

/* ---- for infer ---- */

/* Makes output i (without storage). */
mx_status mx_out(mx_call *call, int i, mx_dtype dtype, const mx_shape *shape);

/* The same for results whose dtype computes: `given` is the dtype that an attribute asks for, or -1 for `standard`. */
mx_status mx_out_float(mx_call *call, int i, int given, mx_dtype standard, const mx_shape *shape);

/* MX_ERR_SHAPE with "OP: " and the texts of the inputs appended, e.g. mx_bad_shape(call, "inner sizes differ"). */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_shape(const mx_call *call, const char *format, ...);
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_dtype(const mx_call *call, const char *format, ...);
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_value(const mx_call *call, const char *format, ...);

/* MX_ERR_DTYPE unless input i, where it is given, has the dtype; a dtype that computes (mx_dtype_computes); or one that
 * has arithmetic (mx_dtype_has_arithmetic). Copies and views take every dtype and ask none of these. */
mx_status mx_want_dtype(const mx_call *call, int i, mx_dtype dtype);
mx_status mx_want_float(const mx_call *call, int i);
mx_status mx_want_arithmetic(const mx_call *call, int i);

/* Whether the call will be recorded on the tape: recording is on and an input requires a gradient. Lets an operation
 * prepare residuals only where a gradient may be asked for; it then makes them of size 0 otherwise. */
bool mx_will_record(const mx_call *call);

/* ---- for cost ---- */

/* flops as given; the bytes of all inputs present and all outputs. */
mx_cost mx_cost_of(const mx_call *call, double flops);

/* ---- applying ---- */

/* Applies `op`. out[0 .. op->n_out) receive tensors with one reference for the caller each; on failure none. Not
 * collective (but for operations whose doc says so). MX_ERR_STATE when `attrs` is not the operation's struct by its
 * size. ops/compose.h has the operations that others are often composed of as C functions. */
mx_status mx_apply(const mx_op *op, mx_tensor *const *in, int n_in, mx_attrs attrs, mx_tensor **out);

/* Runs a call again whose outputs have lost their values: rematerialisation. Allocates the outputs that lack storage.
 */
mx_status mx_apply_again(mx_call *call);

/* What happens around a call. One for each; NULL: none. `timed` is set by mx_apply_observe. */
typedef struct mx_hooks {
    bool (*recording)(void);
    mx_status (*record)(mx_call *call);   /* after success, with outputs */
    bool (*may_read)(const mx_tensor *t); /* a call recorded since the last backward reads the values in its gradient */
    void (*timed)(const mx_call *call, double start_s, double end_s); /* seconds of mx_clock(); tells the observers */
} mx_hooks;
extern mx_hooks mx_apply_hooks;

/* Tells `observer` of every call, after it has run, until it is no longer to be told. Several may observe; calling it
 * twice is as calling it once. */
typedef void (*mx_observer)(const mx_call *call, double start_s, double end_s); /* seconds of mx_clock() */
void mx_apply_observe(mx_observer observer, bool on);

/* All operations, NULL at the end, in the order of ops/table.c; and one by its name, or NULL. */
extern const mx_op *const mx_ops[];
const mx_op *mx_op_find(const char *name);

#endif
