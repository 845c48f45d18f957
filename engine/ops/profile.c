#include "ops/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_profile_row *rows;
static int n_rows, capacity;

static void describe(const mx_call *call, char *text, size_t room)
{
    text[0] = '\0';
    for (int i = 0; i < call->n_in && i < 4; i++) {
        if (!call->in[i])
            continue;
        size_t used = strlen(text);
        snprintf(text + used, room - used, "%s%s %s", used ? ", " : "", mx_dtype_name(call->in[i]->dtype),
                 mx_shape_text(&call->in[i]->shape));
    }
}

static mx_profile_row *find_row(const mx_call *call)
{
    char shapes[256];
    describe(call, shapes, sizeof shapes);
    const char *key = mx_intern(shapes);
    for (int i = 0; i < n_rows; i++)
        if (rows[i].op == call->op && rows[i].shapes == key)
            return &rows[i];
    if (n_rows == capacity) {
        int more = capacity ? 2 * capacity : 64;
        mx_profile_row *grown = realloc(rows, (size_t)more * sizeof *rows);
        if (!grown)
            return NULL;
        rows = grown;
        capacity = more;
    }
    rows[n_rows] = (mx_profile_row){.op = call->op, .shapes = key};
    return &rows[n_rows++];
}

static void timed(const mx_call *call, double start_s, double end_s)
{
    mx_profile_row *row = find_row(call);
    if (!row)
        return; /* no memory for a row: the profile lacks it, and the run continues */
    mx_cost cost = call->op->cost(call);
    row->calls++;
    row->seconds += end_s - start_s;
    row->flops += cost.flops;
    row->bytes += cost.bytes_read + cost.bytes_written;
}

void mx_profile_start(void)
{
    n_rows = 0;
    mx_apply_observe(timed, true);
}

void mx_profile_stop(void) { mx_apply_observe(timed, false); }

static int by_seconds(const void *a, const void *b)
{
    double x = ((const mx_profile_row *)a)->seconds, y = ((const mx_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

int mx_profile_rows(const mx_profile_row **out)
{
    if (n_rows)
        qsort(rows, (size_t)n_rows, sizeof *rows, by_seconds);
    *out = rows;
    return n_rows;
}
