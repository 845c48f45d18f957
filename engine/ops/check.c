#include "ops/check.h"

#include "core/element.h"

#include <math.h>

const char *mx_place;
bool mx_place_backward;

static mx_finding finding;

/* Counts NaNs and infinities of a tensor of reals; *first is the index of the first of either. */
static void count_bad(const mx_tensor *t, int64_t *nans, int64_t *infinities, int64_t *first)
{
    mx_map values;
    *nans = *infinities = 0;
    if (mx_tensor_map(t, 0, mx_count(t), MX_MAP_READ, &values) != MX_OK)
        return;
    for (int64_t i = 0; i < mx_count(t); i++) {
        double value = mx_get_number(values.data, i, t->dtype);
        if (isfinite(value))
            continue;
        if (*nans + *infinities == 0)
            *first = i;
        *(isnan(value) ? nans : infinities) += 1;
    }
    mx_tensor_unmap(&values);
}

/* Checks the results of a call. Infinities count only in the first result: others may hold valid ones, such as the
 * log-sum-exp of a query without keys. */
static void look(const mx_call *call, double start_s, double end_s)
{
    (void)start_s;
    (void)end_s;
    for (int i = 0; i < call->n_out && !finding.op; i++) {
        const mx_tensor *t = call->out[i];
        int64_t nans, infinities, first = 0;
        if (!t || !mx_has_values(t) || !mx_dtype_is_real(t->dtype) || (call->op->flags & MX_OP_COLLECTIVE))
            continue;
        count_bad(t, &nans, &infinities, &first);
        if (nans > 0 || (infinities > 0 && i == 0))
            finding = (mx_finding){.op = call->op,
                                   .place = mx_text_again(mx_place),
                                   .backward = mx_place_backward,
                                   .dtype = t->dtype,
                                   .shape = t->shape,
                                   .nans = nans,
                                   .infinities = infinities,
                                   .first = first};
    }
}

void mx_check_start(void)
{
    mx_text_let_go(finding.place);
    finding = (mx_finding){0};
    mx_apply_observe(look, true);
}

mx_finding mx_check_stop(void)
{
    mx_apply_observe(look, false);
    return finding;
}
