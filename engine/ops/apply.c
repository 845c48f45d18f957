#include "core/offload.h"
#include "core/scope.h"
#include "ops/compose.h"
#include "ops/op.h"
#include "ops/table.h"
#include "ops/terms.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

mx_hooks mx_apply_hooks;
int mx_apply_uncharged;

enum { MAX_OBSERVERS = 4 };
static mx_observer observers[MAX_OBSERVERS]; /* unused entries are last */

static void tell_observers(const mx_call *call, double start_s, double end_s)
{
    for (int i = 0; i < MAX_OBSERVERS && observers[i]; i++)
        observers[i](call, start_s, end_s);
}

void mx_apply_observe(mx_observer observer, bool on)
{
    int n = 0;
    for (int i = 0; i < MAX_OBSERVERS && observers[i]; i++)
        if (observers[i] != observer)
            observers[n++] = observers[i];
    if (on && n < MAX_OBSERVERS)
        observers[n++] = observer;
    for (int i = n; i < MAX_OBSERVERS; i++)
        observers[i] = NULL;
    mx_apply_hooks.timed = n > 0 ? tell_observers : NULL;
}

const mx_op *mx_op_find(const char *name)
{
    for (const mx_op *const *op = mx_ops; *op; op++)
        if (strcmp((*op)->name, name) == 0)
            return *op;
    return NULL;
}

mx_status mx_out(mx_call *call, int i, mx_dtype dtype, const mx_shape *shape)
{
    return mx_tensor_new_empty(dtype, shape, &call->out[i]);
}

mx_status mx_out_float(mx_call *call, int i, int given, mx_dtype standard, const mx_shape *shape)
{
    mx_dtype dtype = given < 0 ? standard : (mx_dtype)given;
    if (!mx_dtype_is_real(dtype) || !mx_dtype_mixes(dtype, standard))
        return mx_bad_dtype(call, "the result can be %s, not %s", standard == MX_F64 ? "f64" : "f32 or bf16",
                            mx_dtype_name(dtype));
    return mx_out(call, i, dtype, shape);
}

static bool is_recording(void) { return mx_apply_hooks.recording && mx_apply_hooks.recording(); }

bool mx_will_record(const mx_call *call)
{
    if (!is_recording())
        return false;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->requires_grad)
            return true;
    return false;
}

/* "matmul: inner sizes differ: f32 (2, 3) and f32 (4, 5)" */
static mx_status bad(const mx_call *call, mx_status code, const char *format, va_list arguments)
{
    char text[1024];
    int used = snprintf(text, sizeof text, "%s: ", call->op->name);
    used += vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    const char *separator = ": ";
    for (int i = 0; i < call->n_in && i < 6 && used < (int)sizeof text; i++) {
        if (!call->in[i])
            continue;
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s", separator, mx_tensor_text(call->in[i]));
        separator = " and ";
    }
    return mx_fail(code, "%s", text);
}

#define DEFINE_BAD(function, code)                                                                                     \
    mx_status function(const mx_call *call, const char *format, ...)                                                   \
    {                                                                                                                  \
        va_list arguments;                                                                                             \
        va_start(arguments, format);                                                                                   \
        mx_status status = bad(call, code, format, arguments);                                                         \
        va_end(arguments);                                                                                             \
        return status;                                                                                                 \
    }
DEFINE_BAD(mx_bad_shape, MX_ERR_SHAPE)
DEFINE_BAD(mx_bad_dtype, MX_ERR_DTYPE)
DEFINE_BAD(mx_bad_value, MX_ERR_VALUE)

static mx_status bad_input(const mx_call *call, int i, const char *names)
{
    return mx_bad_dtype(call, "input %d ('%s') must be %s", i + 1, call->op->inputs[i], names);
}

/* The names are put together only for the message: every call of an operation comes here. */
static mx_status want_one_of(const mx_call *call, int i, bool (*belongs)(mx_dtype))
{
    if (!call->in[i] || belongs(call->in[i]->dtype))
        return MX_OK;
    char names[MX_DTYPE_LIST_BYTES];
    mx_dtype_list(belongs, names);
    return bad_input(call, i, names);
}

mx_status mx_want_dtype(const mx_call *call, int i, mx_dtype dtype)
{
    if (!call->in[i] || call->in[i]->dtype == dtype)
        return MX_OK;
    return mx_bad_dtype(call, "input %d ('%s') must be %s; use t:to(\"%s\")", i + 1, call->op->inputs[i],
                        mx_dtype_name(dtype), mx_dtype_name(dtype));
}

mx_status mx_want_float(const mx_call *call, int i) { return want_one_of(call, i, mx_dtype_computes); }

mx_status mx_want_reals(const mx_call *call)
{
    const mx_tensor *first = call->in[0];
    for (int i = 0; i < call->n_in; i++) {
        MX_TRY(want_one_of(call, i, mx_dtype_is_real));
        if (call->in[i] && !mx_dtype_mixes(first->dtype, call->in[i]->dtype))
            return mx_bad_dtype(call, "f64 mixes with no other float; use t:to(\"f64\")");
    }
    return MX_OK;
}

mx_status mx_want_arithmetic(const mx_call *call, int i) { return want_one_of(call, i, mx_dtype_has_arithmetic); }

mx_cost mx_cost_of(const mx_call *call, double flops)
{
    mx_cost cost = {.flops = flops};
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i])
            cost.bytes_read += (double)mx_bytes(call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i])
            cost.bytes_written += (double)mx_bytes(call->out[i]);
    return cost;
}

int mx_op_inputs(const mx_op *op, bool *variadic)
{
    int n = 0;
    while (op->inputs[n])
        n++;
    *variadic = n > 0 && strstr(op->inputs[n - 1], "...");
    return n;
}

/* Checks the inputs, and fetches or recomputes missing values. Their number follows from the operation's input names.
 */
static mx_status check_inputs(const mx_call *call)
{
    const mx_op *op = call->op;
    bool variadic;
    int named = mx_op_inputs(op, &variadic);
    if (call->n_in > named && !variadic)
        return mx_fail(MX_ERR_VALUE, "%s takes at most %d tensors, %d given", op->name, named, call->n_in);
    for (int i = 0; i < named || i < call->n_in; i++) {
        mx_tensor *t = i < call->n_in ? call->in[i] : NULL;
        const char *name = op->inputs[i < named ? i : named - 1];
        if (t)
            MX_TRY(mx_tensor_fetch(t));
        if (!t && !strchr(name, '?'))
            return mx_fail(MX_ERR_VALUE, "%s: input %d ('%s') is missing: %s", op->name, i + 1, name, op->doc);
        if (t && !t->storage)
            return mx_fail(MX_ERR_STATE,
                           "%s: input %d ('%s'), %s, has been released: its scope has closed; return "
                           "it from mx.scope or call t:keep() inside",
                           op->name, i + 1, name, mx_tensor_text(t));
    }
    return MX_OK;
}

static bool changes_input(const mx_call *call, int i)
{
    const mx_op *op = call->op;
    return (op->flags & MX_OP_MUTATES) && ((op->changes_in ? op->changes_in : 1u) >> i & 1u);
}

/* Refuses in-place changes of values that backward will read. (Backward itself turns recording off. It detects changes
 * that cannot be detected here: through views, under mx.no_grad, or of values that older records read.) Also refuses to
 * write a tensor that needs a gradient into another one, because in-place changes are not recorded. */
static mx_status check_mutation(const mx_call *call)
{
    if (!(call->op->flags & MX_OP_MUTATES) || !is_recording() || !mx_apply_hooks.may_read)
        return MX_OK;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && !changes_input(call, i) && call->in[i]->requires_grad)
            return mx_fail(MX_ERR_STATE,
                           "%s would change %s by %s, whose gradient would be lost: changes in place are not recorded; "
                           "use t:detach() or mx.no_grad where no gradient is wanted",
                           call->op->name, mx_tensor_text(call->in[0]), mx_tensor_text(call->in[i]));
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && changes_input(call, i) && mx_apply_hooks.may_read(call->in[i]))
            return mx_fail(MX_ERR_STATE,
                           "%s would change %s, which backward still reads; call mx.backward before, or compute what "
                           "needs no gradient under mx.no_grad",
                           call->op->name, mx_tensor_text(call->in[i]));
    return MX_OK;
}

/* Waits for jobs that still write the values to be read, or read the values to be changed. A view reads nothing. */
static mx_status wait_for_values(const mx_call *call)
{
    bool waits = !(call->op->flags & (MX_OP_COLLECTIVE | MX_OP_VIEW));
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        bool changes = t && changes_input(call, i);
        if (t && waits)
            MX_TRY(mx_tensor_wait(t, changes));
        else if (changes && t->storage)
            mx_storage_change(t->storage, NULL);
        if (changes && t->storage)
            t->storage->changed_by = call->op->name;
    }
    return MX_OK;
}

static mx_status run(mx_call *call)
{
    MX_TRY(wait_for_values(call));
    if (!(call->op->flags & (MX_OP_VIEW | MX_OP_OWN_STORAGE)))
        for (int i = 0; i < call->n_out; i++)
            if (!call->out[i]->storage)
                MX_TRY(mx_tensor_allocate(call->out[i]));
    if (!mx_apply_hooks.timed || (call->op->flags & MX_OP_COMPOSITE) || mx_apply_uncharged > 0)
        return mx_device_current->run(mx_device_current, call);
    double start = mx_clock();
    mx_status status = mx_device_current->run(mx_device_current, call);
    mx_apply_hooks.timed(call, start, mx_clock());
    return status;
}

/* Records a call. If no input requires a gradient, but the record of some input's call is forgotten, the outputs are
 * marked like that input, so that backward does not treat them as constants. */
static mx_status record(mx_call *call)
{
    if ((call->op->flags & MX_OP_MUTATES) || !is_recording())
        return MX_OK;
    const mx_tensor *gone = NULL;
    for (int i = 0; i < call->n_in; i++) {
        const mx_tensor *t = call->in[i];
        if (t && t->requires_grad)
            return mx_apply_hooks.record(call);
        if (t && t->gone.op)
            gone = t;
    }
    for (int i = 0; gone && i < call->n_out; i++)
        if (mx_dtype_may_have_gradient(call->out[i]->dtype))
            call->out[i]->gone = (mx_origin){gone->gone.op, gone->gone.site, true};
    return MX_OK;
}

/* Puts the composition in the place of the call: it is run, charged and recorded instead. */
static mx_status apply_plain(mx_call *call)
{
    mx_terms s = {.n = 0};
    mx_tensor *y = call->op->plain(&s, call);
    for (int i = 0; i < call->n_out; i++) {
        mx_scope_keep(call->out[i]);
        mx_release(call->out[i]);
        call->out[i] = NULL;
    }
    call->out[0] = y ? mx_retain(y) : NULL;
    mx_terms_release(&s);
    return s.status == MX_OK ? MX_OK : mx_context(s.status, "%s in f64", call->op->name);
}

/* Whether an input shares memory with one that is changed, but is not just that one: it would change while it is read.
 * (Kernels allow an input that is the changed one.) */
static bool overlaps_changed(const mx_call *call, int i)
{
    const mx_tensor *t = call->in[i];
    for (int j = 0; j < call->n_in; j++) {
        const mx_tensor *c = call->in[j];
        if (!c || !changes_input(call, j) || c->storage != t->storage)
            continue;
        int64_t t_bytes = mx_bytes(t), c_bytes = mx_bytes(c);
        if ((t->offset != c->offset || t_bytes != c_bytes) && t->offset < c->offset + c_bytes &&
            c->offset < t->offset + t_bytes)
            return true;
    }
    return false;
}

/* Runs an operation that changes inputs. Others that overlap these are copied first. */
static mx_status run_apart(mx_call *call)
{
    mx_tensor *const *given = call->in;
    mx_tensor *in[MX_MAX_INPUTS] = {NULL}, *copies[MX_MAX_INPUTS] = {NULL};
    mx_status status = MX_OK;
    for (int i = 0; i < call->n_in && status == MX_OK; i++) {
        in[i] = given[i];
        if (in[i] && !changes_input(call, i) && overlaps_changed(call, i)) {
            status = mx_apply_cast(in[i], in[i]->dtype, &copies[i]);
            in[i] = copies[i];
        }
    }
    call->in = in;
    if (status == MX_OK)
        status = run(call);
    call->in = given;
    for (int i = 0; i < call->n_in; i++)
        if (copies[i]) {
            mx_scope_keep(copies[i]);
            mx_release(copies[i]);
        }
    return status;
}

static mx_status infer_run_record(mx_call *call)
{
    MX_TRY(check_inputs(call));
    MX_TRY(check_mutation(call));
    MX_TRY(call->op->infer(call));
    if ((call->op->flags & MX_OP_PLAIN_F64) && call->in[0]->dtype == MX_F64)
        return apply_plain(call);
    MX_TRY(call->op->flags & MX_OP_MUTATES ? run_apart(call) : run(call));
    return record(call);
}

mx_status mx_apply(const mx_op *op, mx_tensor *const *in, int n_in, mx_attrs attrs, mx_tensor **out)
{
    if (n_in > MX_MAX_LIST)
        return mx_fail(MX_ERR_VALUE, "%s takes at most %d tensors, %d given", op->name, MX_MAX_LIST, n_in);
    mx_tensor *few[MX_MAX_INPUTS] = {NULL};
    mx_call call; /* attributes that the operation does not have stay undefined: clearing them takes time */
    memset(&call, 0, offsetof(mx_call, attr));
    call.op = op;
    call.n_in = n_in;
    call.n_out = op->n_out;
    call.in = n_in > MX_MAX_INPUTS ? in : few;
    for (int i = 0; i < n_in && n_in <= MX_MAX_INPUTS; i++)
        few[i] = in[i];
    if (attrs.bytes != op->attr_bytes)
        return mx_fail(MX_ERR_STATE, "%s was given attributes of %zu bytes; its struct has %zu", op->name, attrs.bytes,
                       op->attr_bytes);
    if (attrs.bytes > 0)
        memcpy(call.attr, attrs.data, attrs.bytes);
    mx_status status = infer_run_record(&call);
    for (int i = 0; i < op->n_out; i++) {
        if (status != MX_OK && call.out[i]) {
            mx_scope_keep(call.out[i]);
            mx_release(call.out[i]);
            call.out[i] = NULL;
        }
        if (out)
            out[i] = call.out[i];
    }
    return status;
}

mx_status mx_apply_again(mx_call *call) { return run(call); }
