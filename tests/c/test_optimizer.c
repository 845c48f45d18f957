/* AdamW and SGD: ten steps against double precision, on every instruction set. */
#include "kernels/optimizer.h"

#include "buffers.h"
#include "check.h"

#include <omp.h>
#include <string.h>

enum { STEPS = 10 };

typedef struct reference {
    double *param, *m, *v;
} reference;

static double *doubles(int64_t n) { return calloc((size_t)n + 1, sizeof(double)); }

static double gradient(int64_t i, int step) { return sin(0.37 * (double)i + 1.3 * step) * (i % 7 == 0 ? 1e-3 : 1); }

static void adamw_reference(reference *s, int64_t i, double g, int step, const mx_adamw *a)
{
    double b1 = (double)a->beta1, b2 = (double)a->beta2;
    s->m[i] = b1 * s->m[i] + (1 - b1) * g;
    s->v[i] = b2 * s->v[i] + (1 - b2) * g * g;
    double mhat = s->m[i] / (1 - pow(b1, step)), vhat = s->v[i] / (1 - pow(b2, step));
    s->param[i] -= a->lr * (mhat / (sqrt(vhat + a->eps_root) + a->eps) + a->weight_decay * s->param[i]);
}

static void check_adamw(int64_t n, mx_dtype param_type, mx_dtype grad_type, bool with_copy, const char *isa)
{
    void *param = make_values(n, param_type, -1, 1), *grad = make_values(n, grad_type, 0, 1);
    float *m = make_values(n, MX_F32, 0, 0), *v = make_values(n, MX_F32, 0, 0);
    mx_bf16 *copy = make_values(n, MX_BF16, 0, 1);
    reference s = {doubles(n), doubles(n), doubles(n)};
    mx_adamw a = {.param = {param, param_type},
                  .grad = {grad, grad_type},
                  .m = m,
                  .v = v,
                  .copy = with_copy ? copy : NULL,
                  .lr = 0.01f,
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .eps_root = 1e-12f,
                  .weight_decay = 0.1f,
                  .grad_scale = 0.25f};
    for (int64_t i = 0; i < n; i++)
        s.param[i] = get_value(param, i, param_type);
    for (int step = 1; step <= STEPS; step++) {
        a.correct1 = (float)(1 / (1 - pow((double)a.beta1, step)));
        a.correct2 = (float)(1 / (1 - pow((double)a.beta2, step)));
        for (int64_t i = 0; i < n; i++) {
            set_value(grad, i, gradient(i, step), grad_type);
            if (param_type == MX_BF16) /* the state that was kept is the rounded one */
                s.param[i] = get_value(param, i, param_type);
            adamw_reference(&s, i, 0.25 * get_value(grad, i, grad_type), step, &a);
        }
        mx_adamw_run(&a, n);
    }
    double error = worst_error(param, param_type, s.param, n);
    CHECK(error <= tolerance(param_type, 2e-6), "param %s grad %s n = %d: %g on %s", mx_dtype_name(param_type),
          mx_dtype_name(grad_type), (int)n, error, isa);
    CHECK(worst_error(m, MX_F32, s.m, n) < 1e-6 && worst_error(v, MX_F32, s.v, n) < 1e-6, "moments on %s", isa);
    int wrong = 0;
    for (int64_t i = 0; i < n && with_copy; i++)
        wrong += copy[i] != mx_to_bf16((float)get_value(param, i, param_type));
    CHECK(wrong == 0, "%d copies wrong on %s", wrong, isa);
    CHECK(guard_intact(param, n, param_type) && guard_intact(m, n, MX_F32) && guard_intact(v, n, MX_F32) &&
              guard_intact(copy, n, MX_BF16),
          "n = %d on %s", (int)n, isa);
    free(param);
    free(grad);
    free(m);
    free(v);
    free(copy);
    free(s.param);
    free(s.m);
    free(s.v);
}

static void check_sgd(int64_t n, mx_dtype param_type, mx_dtype grad_type, int kind, const char *isa)
{
    void *param = make_values(n, param_type, -1, 1), *grad = make_values(n, grad_type, 0, 1);
    float *state = make_values(n, MX_F32, 0, 0);
    double *want = doubles(n), *u = doubles(n);
    mx_sgd s = {.param = {param, param_type},
                .grad = {grad, grad_type},
                .state = kind ? state : NULL,
                .lr = 0.1f,
                .momentum = kind ? 0.9f : 0,
                .weight_decay = 0.01f,
                .grad_scale = 2,
                .nesterov = kind == 2};
    for (int64_t i = 0; i < n; i++)
        want[i] = get_value(param, i, param_type);
    for (int step = 1; step <= STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            set_value(grad, i, gradient(i, step), grad_type);
            if (param_type == MX_BF16)
                want[i] = get_value(param, i, param_type);
            double g = 2 * get_value(grad, i, grad_type) + (double)s.weight_decay * want[i];
            u[i] = (double)s.momentum * u[i] + g;
            want[i] -= (double)s.lr * (kind == 0 ? g : kind == 1 ? u[i] : g + (double)s.momentum * u[i]);
        }
        mx_sgd_run(&s, n);
    }
    double error = worst_error(param, param_type, want, n);
    CHECK(error <= tolerance(param_type, 2e-6), "kind %d, n = %d: %g on %s", kind, (int)n, error, isa);
    CHECK(guard_intact(param, n, param_type) && guard_intact(state, n, MX_F32), "n = %d on %s", (int)n, isa);
    free(param);
    free(grad);
    free(state);
    free(want);
    free(u);
}

static void check_all(const char *isa)
{
    omp_set_num_threads(2);
    static const int64_t sizes[] = {0, 1, 7, 8, 33, 1000, 70001};
    for (int k = 0; k < 7; k++)
        for (int types = 0; types < 4; types++) {
            mx_dtype param_type = types & 1 ? MX_BF16 : MX_F32, grad_type = types & 2 ? MX_BF16 : MX_F32;
            check_adamw(sizes[k], param_type, grad_type, false, isa);
            check_adamw(sizes[k], param_type, grad_type, true, isa);
            for (int kind = 0; kind < 3; kind++)
                check_sgd(sizes[k], param_type, grad_type, kind, isa);
        }
}

int main(void)
{
    for_each_isa(check_all);
    return check_done();
}
