#include "kernels/class_loss.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

static double weight_of(const mx_class_loss *c, int64_t class) { return c->weight ? (double)c->weight[class] : 1.0; }

static bool counts(const mx_class_loss *c, int64_t row) { return c->targets[row] != c->ignore; }

int64_t mx_class_loss_find_bad(const mx_class_loss *c)
{
    for (int64_t r = 0; r < c->rows; r++)
        if (counts(c, r) && (c->targets[r] < 0 || c->targets[r] >= c->classes))
            return r;
    return -1;
}

double mx_class_loss_total(const mx_class_loss *c)
{
    double total = 0;
    for (int64_t r = 0; r < c->rows; r++)
        total += counts(c, r) ? weight_of(c, c->targets[r]) : 0;
    return total;
}

static double sum_of_weights(const mx_class_loss *c)
{
    double sum = 0;
    for (int64_t k = 0; c->weight && k < c->classes; k++)
        sum += (double)c->weight[k];
    return c->weight ? sum : (double)c->classes;
}

static const void *row_of(const mx_class_loss *c, const void *matrix, int64_t row)
{
    return (const char *)matrix + row * c->classes * (int64_t)mx_dtype_bytes(c->dtype);
}

/* ---- f64 ---- */

static double lse_f64(const mx_class_loss *c, const double *x, double *weighted)
{
    double largest = -INFINITY, sum = 0;
    *weighted = 0;
    for (int64_t k = 0; k < c->classes; k++) {
        largest = x[k] > largest ? x[k] : largest;
        *weighted += weight_of(c, k) * x[k];
    }
    for (int64_t k = 0; k < c->classes; k++)
        sum += exp(x[k] - largest);
    return largest + log(sum);
}

static void grad_f64(const mx_class_loss *c, const double *x, double lse, double factor, double spread, double *dx)
{
    for (int64_t k = 0; k < c->classes; k++)
        dx[k] = factor * exp(x[k] - lse) - spread * weight_of(c, k);
}

/* ---- forward ---- */

static void forward_row(const mx_class_loss *c, int64_t row, double weights)
{
    const void *x = row_of(c, c->x, row);
    mx_dtype sums = mx_dtype_accumulates_in(c->dtype);
    double lse, weighted = 0, loss = 0, smooth = c->smoothing / (double)c->classes;
    if (c->dtype == MX_F64) {
        lse = lse_f64(c, x, &weighted);
    } else {
        float sum = 0;
        lse = (double)mx_kernels_current()->classes->lse(x, c->dtype, c->classes, c->weight, smooth > 0 ? &sum : NULL);
        weighted = (double)sum;
    }
    if (counts(c, row)) {
        int32_t target = c->targets[row];
        loss = (1 - c->smoothing) * weight_of(c, target) * (lse - mx_get_number(x, target, c->dtype));
        if (smooth > 0)
            loss += smooth * (weights * lse - weighted);
    }
    mx_set_number(c->lse, row, lse, sums);
    mx_set_number(c->loss, row, loss, sums);
}

/* ---- backward ---- */

/* The gradient by x_k is g times (hit + smooth weights) e^(x_k - lse) - smooth w_k, less hit at the target. */
static void backward_row(const mx_class_loss *c, int64_t row, double weights)
{
    const void *x = row_of(c, c->x, row);
    void *dx = (void *)row_of(c, c->dx, row);
    bool stream = x != dx && mx_should_stream(2 * c->rows * c->classes * (int64_t)mx_dtype_bytes(c->dtype));
    if (!counts(c, row)) {
        memset(dx, 0, (size_t)c->classes * mx_dtype_bytes(c->dtype));
        return;
    }
    mx_dtype sums = mx_dtype_accumulates_in(c->dtype);
    int32_t target = c->targets[row];
    double g = c->scale * mx_get_number(c->dloss, row * c->dloss_step, sums), lse = mx_get_number(c->lse, row, sums);
    double hit = g * (1 - c->smoothing) * weight_of(c, target), smooth = g * c->smoothing / (double)c->classes;
    double factor = hit + smooth * weights, at_target = mx_get_number(x, target, c->dtype);
    if (c->dtype == MX_F64)
        grad_f64(c, x, lse, factor, smooth, dx);
    else
        mx_kernels_current()->classes->grad(x, c->dtype, c->classes, (float)lse, (float)factor, c->weight,
                                            (float)smooth, dx, stream);
    mx_set_number(dx, target, factor * exp(at_target - lse) - smooth * weight_of(c, target) - hit, c->dtype);
}

static void run(const mx_class_loss *c, void (*of_row)(const mx_class_loss *, int64_t, double))
{
    double weights = sum_of_weights(c);
    if (c->classes == 0)
        return;
#pragma omp parallel for schedule(static) if (c->rows * c->classes >= MX_CHUNK)
    for (int64_t row = 0; row < c->rows; row++)
        of_row(c, row, weights);
}

void mx_class_loss_forward(const mx_class_loss *c) { run(c, forward_row); }

void mx_class_loss_backward(const mx_class_loss *c) { run(c, backward_row); }
