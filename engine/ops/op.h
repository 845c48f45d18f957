/* Operations: everything that the engine computes is an operation.
 *
 * An operation is one constant mx_op, in the file with all its code. It names its inputs and options (so that Lua,
 * mx.help and error messages need no second list), and defines its outputs, its cost, how the host computes it, and its
 * gradient as further operations. mx_apply is the only way to run it. */
#ifndef MX_OPS_OP_H
#define MX_OPS_OP_H

#include "core/job.h"
#include "core/tensor.h"

enum {
    MX_MAX_INPUTS = 16,   /* of an operation whose inputs have names */
    MX_MAX_LIST = 100000, /* of one that takes "tensors..." */
    MX_MAX_OUTPUTS = 4,
    MX_ATTR_BYTES = 256,
};

typedef struct mx_op mx_op;
struct mx_terms; /* ops/terms.h */

/* One call of an operation. Optional inputs that are not given are NULL: `in` has at least MX_MAX_INPUTS entries. The
 * attributes are the operation's own struct. */
typedef struct mx_call {
    const mx_op *op;
    int n_in, n_out;
    mx_tensor *const *in;
    mx_tensor *out[MX_MAX_OUTPUTS];
    _Alignas(16) unsigned char attr[MX_ATTR_BYTES];
} mx_call;

/* What limits a call: memory bandwidth, or the arithmetic of matrix products (of attention: tile by tile). */
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

/* The least work of a call, independent of the implementation: the numbers of the roofline. */
typedef struct mx_cost {
    mx_work work;
    double m, n, k; /* MX_WORK_PRODUCT: (m, k) by (k, n); 0: not a single matrix product */
    double flops;
    double bytes_read, bytes_written; /* each input read once, each output written once */
    double bytes_sent;                /* by this rank to others */
} mx_cost;

/* The state of one gradient computation. For each wanted input, vjp sets grad[i] to a tensor with one reference, or
 * adds to sum[i] in place and leaves grad[i] NULL. It may return an out_grad itself, with mx_retain. The tape sums the
 * gradients that several calls give for one tensor. A vjp may call mx_vjp_let_go(v, i) once it has read the values of
 * input i: unless another call needs them, their memory is free for the gradients that are still to be computed. */
typedef struct mx_vjp {
    const mx_call *call;
    mx_tensor *const *out_grad; /* one per output; NULL: nothing depends on that output */
    bool *want;                 /* whether the input's gradient is needed; this and the next two: one per input */
    mx_tensor **sum;            /* the sum so far, if it may be added to in place; else NULL */
    mx_tensor **grad;
    bool retain; /* the tape is retained: the call's outputs must not be changed or dropped */
    void (*let_go)(const struct mx_vjp *v, int i); /* NULL: the tape keeps the values until the vjp returns */
} mx_vjp;

static inline void mx_vjp_let_go(const mx_vjp *v, int i)
{
    if (v->let_go)
        v->let_go(v, i);
}

/* The dtype of a tensor's gradient: f32 for a leaf (a parameter), bf16 for codes, which stand for reals (MX_OP_CODES),
 * otherwise that of the tensor. */
static inline mx_dtype mx_gradient_dtype(const mx_tensor *t)
{
    if (!t->node)
        return mx_dtype_accumulates_in(t->dtype);
    return mx_dtype_is_code(t->dtype) ? MX_BF16 : t->dtype;
}

static inline mx_dtype mx_vjp_dtype(const mx_vjp *v, int i) { return mx_gradient_dtype(v->call->in[i]); }

typedef enum mx_attr_kind {
    MX_ATTR_BOOL,  /* bool */
    MX_ATTR_INT,   /* int64_t, at most 2^53 in size */
    MX_ATTR_DIM,   /* int64_t, a dimension: 1-based in Lua (negative counts from the end: -1 is the last), 0-based here;
                      infer gets negative values unchanged */
    MX_ATTR_DIMS,  /* mx_dims: a dimension or a list of dimensions in Lua; numbers as in MX_ATTR_DIM */
    MX_ATTR_FLOAT, /* double */
    MX_ATTR_DTYPE, /* int: an mx_dtype; -1 if not given */
    MX_ATTR_ENUM,  /* int: the index in `choices` */
    MX_ATTR_SHAPE, /* mx_shape: in Lua a table of integers; if it is optional, or an integer; and if there are
                      `choices`, one of these words: then n_dims is -1 - its index */
    MX_ATTR_SEED,  /* mx_seed: an integer; default: the next seed of the stream of mx.manual_seed */
    MX_ATTR_SEED_IF, /* the same, but drawn only if the attribute before it, an MX_ATTR_FLOAT, is above 0 */
    MX_ATTR_AXES,    /* uint32_t: axes of the mesh, a name or a list of names in Lua; 0 if not given: all ranks */
} mx_attr_kind;

/* The key of a random stream. A drawn key gives other numbers than any key that a script gives. */
typedef struct mx_seed {
    int64_t key;
    int64_t draw; /* the number of the draw, from 1; 0: the script gave the key */
} mx_seed;

/* Dimensions by number, from 0; negative ones count from the end. */
typedef struct mx_dims {
    int n; /* 0: not given */
    int dim[MX_MAX_DIMS];
} mx_dims;

typedef struct mx_attr {
    const char *name;
    mx_attr_kind kind;
    size_t offset;              /* in the operation's attribute struct */
    double standard;            /* the default (for a shape: no dimensions); NAN: must be given */
    const char *const *choices; /* of MX_ATTR_ENUM and MX_ATTR_SHAPE, NULL at the end */
    const char *doc;            /* one line */
} mx_attr;

enum {
    MX_OP_MUTATES = 1, /* changes inputs in place (`changes_in`); never recorded; has no vjp */
    MX_OP_VIEW = 2,   /* out[0] shares storage with in[0]: host sets it with mx_tensor_alias, apply allocates nothing */
    MX_OP_SOURCE = 4, /* needs no tensor input */
    MX_OP_COLLECTIVE = 8,   /* all ranks of an axis must call it; waits itself for values in flight */
    MX_OP_OWN_STORAGE = 16, /* host gives the outputs their storage; apply allocates nothing */
    MX_OP_COMPOSITE = 64,   /* host applies other operations, unrecorded; these are timed and costed instead */
    MX_OP_PLAIN_F64 = 128,  /* f64 inputs are computed by `plain`, not by host */
    MX_OP_CODES = 256, /* outputs of a dtype of codes have a gradient, too: that of the reals that they stand for */
    MX_OP_LIKE_SECOND = 512, /* the second input gives the result its dtype: a number in place of the first is f32 */
    MX_OP_REGATHER = 32, /* its result is not kept for backward, which calls it again, with any policy (tape/tape.h) */
};

struct mx_op {
    const char *name; /* as in Lua: mx.NAME(inputs ..., {attributes}) */
    const char *doc;  /* one line: what it computes, with shapes */

    /* Names of the inputs in order, NULL at the end. "bias?" is optional; "tensors..." means one or more. */
    const char *const *inputs;
    int n_out;
    int n_results; /* of the outputs, how many the caller sees in Lua; the rest are residuals for the vjp */
    int flags;

    const mx_attr *attrs; /* name == NULL at the end; NULL: none */
    size_t attr_bytes;    /* at most MX_ATTR_BYTES */

    /* Bit i: the gradient reads the values of input (output) i. The tape does not keep other values.
     * `reads_in` is 0 if the operation takes a list. */
    uint32_t reads_in, reads_out;
    uint32_t reads_with_last; /* of reads_in, those that it reads only if the last input, which is optional, is given */

    /* For backward in two halves (mx_tape_backward_inputs). Bit i of `late`: the gradient of input i can be left to a
     * second call of vjp, which then reads no other inputs than those of `reads_late`. */
    uint32_t late, reads_late;

    uint32_t changes_in; /* MX_OP_MUTATES: bit i: input i is changed in place; 0: only the first */

    mx_status (*infer)(mx_call *call);    /* checks inputs and attributes, creates outputs with mx_out */
    mx_cost (*cost)(const mx_call *call); /* called after infer; reads only shapes and attributes */
    mx_status (*host)(mx_call *call);     /* inputs and outputs have values; calls kernels/ */
    mx_status (*vjp)(mx_vjp *v);          /* NULL: not differentiable */

    /* For gradients of gradients, one of these two; otherwise they are refused. Either may read all inputs (and
     * vjp_recorded all outputs) that vjp reads.
     * vjp_recorded: as vjp, made only of operations that have gradients themselves: nothing in place, no v->sum.
     * plain: the first result composed of operations, whose gradients are then those of the composition; NULL after a
     * failure (mx_terms.status). With MX_OP_PLAIN_F64 it computes all calls with f64 inputs. */
    mx_status (*vjp_recorded)(mx_vjp *v);
    mx_tensor *(*plain)(struct mx_terms *s, const mx_call *call);

    void (*forget)(mx_call *call); /* frees what the attributes own when the record is forgotten; NULL: nothing */
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

/* The number of names in `inputs`, and whether the last one stands for one or more tensors. */
int mx_op_inputs(const mx_op *op, bool *variadic);

/* ---- for infer ---- */

/* Creates output i, without storage. */
mx_status mx_out(mx_call *call, int i, mx_dtype dtype, const mx_shape *shape);

/* The same for results that are reals: `given` is the dtype from an attribute, or -1 for `standard`, that of the
 * inputs; f64 stays f64. */
mx_status mx_out_float(mx_call *call, int i, int given, mx_dtype standard, const mx_shape *shape);

/* MX_ERR_SHAPE with "OP: " and the texts of the inputs appended, e.g. mx_bad_shape(call, "inner sizes differ"). */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_shape(const mx_call *call, const char *format, ...);
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_dtype(const mx_call *call, const char *format, ...);
__attribute__((format(printf, 2, 3), cold)) mx_status mx_bad_value(const mx_call *call, const char *format, ...);

/* MX_ERR_DTYPE unless input i, if given, has this dtype; a dtype of computation (mx_dtype_computes); or a dtype with
 * arithmetic (mx_dtype_has_arithmetic). Copies and views accept every dtype and need none of these checks. */
mx_status mx_want_dtype(const mx_call *call, int i, mx_dtype dtype);
mx_status mx_want_float(const mx_call *call, int i);
/* Unless all given inputs are reals: f32 and bf16, or all f64 (mx_dtype_mixes). */
mx_status mx_want_reals(const mx_call *call);
mx_status mx_want_arithmetic(const mx_call *call, int i);

/* Whether the call will be recorded on the tape: recording is on and an input requires a gradient. If not, an operation
 * can make its residuals of size 0. */
bool mx_will_record(const mx_call *call);

/* ---- for cost ---- */

/* The cost with these FLOPs and the bytes of all given inputs and all outputs. */
mx_cost mx_cost_of(const mx_call *call, double flops);

/* ---- applying ---- */

/* Applies `op`. out[0 .. op->n_out) receive tensors with one reference for the caller each; on failure none. Not
 * collective (but for operations whose doc says so). MX_ERR_STATE when `attrs` is not the operation's struct by its
 * size. ops/compose.h has the operations that others are often composed of as C functions. */
mx_status mx_apply(const mx_op *op, mx_tensor *const *in, int n_in, mx_attrs attrs, mx_tensor **out);

/* While it is above 0, calls are neither timed nor charged: their work is part of another call's cost. */
extern int mx_apply_uncharged;

/* Runs a call again whose outputs have lost their values (rematerialisation). Allocates outputs without storage. */
mx_status mx_apply_again(mx_call *call);

/* Hooks around a call; NULL: none. mx_apply_observe sets `timed`. */
typedef struct mx_hooks {
    bool (*recording)(void);
    mx_status (*record)(mx_call *call);   /* after success, with outputs */
    bool (*may_read)(const mx_tensor *t); /* a call recorded since the last backward reads the values in its gradient */
    void (*timed)(const mx_call *call, double start_s, double end_s); /* seconds of mx_clock(); calls the observers */
} mx_hooks;
extern mx_hooks mx_apply_hooks;

/* Turns an observer on or off. An observer is called after every call of an operation. There may be several; turning
 * one on twice is the same as once. */
typedef void (*mx_observer)(const mx_call *call, double start_s, double end_s); /* seconds of mx_clock() */
void mx_apply_observe(mx_observer observer, bool on);

/* All operations in the order of ops/table.h, NULL at the end; and the operation with a name, or NULL. */
extern const mx_op *const mx_ops[];
const mx_op *mx_op_find(const char *name);

#endif
