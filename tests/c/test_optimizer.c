/* AdamW, SGD and Lion: ten steps against double precision, on every instruction set. */
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

static void check_adamw(int64_t n, mx_dtype param_type, mx_dtype grad_type, mx_dtype m_type, mx_dtype v_type,
                        bool with_copy, const char *isa)
{
    void *param = make_values(n, param_type, -1, 1), *grad = make_values(n, grad_type, 0, 1);
    void *m = make_values(n, m_type, 0, 0), *v = make_values(n, v_type, 0, 0);
    mx_bf16 *copy = make_values(n, MX_BF16, 0, 1);
    reference s = {doubles(n), doubles(n), doubles(n)};
    mx_adamw a = {.param = {param, param_type},
                  .grad = {grad, grad_type},
                  .m = {m, m_type},
                  .v = {v, v_type},
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
            /* the state that was kept is the rounded one */
            s.param[i] = param_type == MX_BF16 ? get_value(param, i, param_type) : s.param[i];
            s.m[i] = m_type == MX_BF16 ? get_value(m, i, m_type) : s.m[i];
            s.v[i] = v_type == MX_BF16 ? get_value(v, i, v_type) : s.v[i];
            adamw_reference(&s, i, 0.25 * get_value(grad, i, grad_type), step, &a);
        }
        mx_adamw_run(&a, n);
    }
    double error = worst_error(param, param_type, s.param, n);
    CHECK(error <= tolerance(param_type, 2e-6), "param %s grad %s n = %d: %g on %s", mx_dtype_name(param_type),
          mx_dtype_name(grad_type), (int)n, error, isa);
    CHECK(worst_error(m, m_type, s.m, n) <= tolerance(m_type, 1e-6) &&
              worst_error(v, v_type, s.v, n) <= tolerance(v_type, 1e-6),
          "moments %s and %s on %s", mx_dtype_name(m_type), mx_dtype_name(v_type), isa);
    int wrong = 0;
    for (int64_t i = 0; i < n && with_copy; i++)
        wrong += copy[i] != mx_to_bf16((float)get_value(param, i, param_type));
    CHECK(wrong == 0, "%d copies wrong on %s", wrong, isa);
    CHECK(guard_intact(param, n, param_type) && guard_intact(m, n, m_type) && guard_intact(v, n, v_type) &&
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
                .decay = 0.99f,
                .nesterov = kind == 2,
                .lion = kind == 3};
    for (int64_t i = 0; i < n; i++)
        want[i] = get_value(param, i, param_type);
    for (int step = 1; step <= STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            set_value(grad, i, gradient(i, step), grad_type);
            if (param_type == MX_BF16)
                want[i] = get_value(param, i, param_type);
            double g = 2 * get_value(grad, i, grad_type) + (s.lion ? 0 : (double)s.weight_decay * want[i]);
            double c = (double)s.momentum * u[i] + (1 - (double)s.momentum) * g;
            if (s.lion) {
                u[i] += (1 - (double)s.decay) * (g - u[i]);
                want[i] -= (double)s.lr * ((c > 0) - (c < 0) + (double)s.weight_decay * want[i]);
                continue;
            }
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
            check_adamw(sizes[k], param_type, grad_type, MX_F32, MX_F32, false, isa);
            check_adamw(sizes[k], param_type, grad_type, MX_F32, MX_F32, true, isa);
            for (int moments = 1; moments < 4 && sizes[k] <= 1000; moments++)
                check_adamw(sizes[k], param_type, grad_type, moments & 1 ? MX_BF16 : MX_F32,
                            moments & 2 ? MX_BF16 : MX_F32, false, isa);
            for (int kind = 0; kind < 4; kind++)
                check_sgd(sizes[k], param_type, grad_type, kind, isa);
        }
}

/* ---- stochastic rounding ---- */

enum { KINDS = 6 }; /* SGD without a state, with momentum, looking ahead; AdamW with f32, mixed and bf16 moments */

static bool is_bf16_m(int kind) { return kind == 5; }
static bool is_bf16_v(int kind) { return kind >= 4; }

/* One or more steps of n bf16 parameters from `param` on, with gradients g and the rounding r. */
static void take_steps(int kind, mx_bf16 *param, float *grad, int64_t n, float lr, mx_rounding r, int steps)
{
    mx_dtype m_type = is_bf16_m(kind) ? MX_BF16 : MX_F32, v_type = is_bf16_v(kind) ? MX_BF16 : MX_F32;
    void *m = make_values(n, m_type, 0, 0), *v = make_values(n, v_type, 0, 0);
    for (int step = 1; step <= steps; step++) {
        mx_adamw a = {.param = {param, MX_BF16},
                      .grad = {grad, MX_F32},
                      .m = {m, m_type},
                      .v = {v, v_type},
                      .rounding = r,
                      .lr = lr,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .grad_scale = 1,
                      .correct1 = (float)(1 / (1 - pow(0.9, step))),
                      .correct2 = (float)(1 / (1 - pow(0.95, step)))};
        mx_sgd s = {.param = {param, MX_BF16},
                    .grad = {grad, MX_F32},
                    .state = kind > 0 ? m : NULL,
                    .rounding = r,
                    .lr = lr,
                    .momentum = kind > 0 ? 0.9f : 0,
                    .weight_decay = 0.01f,
                    .grad_scale = 1,
                    .nesterov = kind == 2};
        r.key = r.key * 31 + 1;
        if (kind > 2)
            mx_adamw_run(&a, n);
        else
            mx_sgd_run(&s, n);
    }
    free(m);
    free(v);
}

/* Every path, and any number of threads, gives the bits of the portable one. */
static mx_bf16 *expected_rounded[KINDS];

static void check_rounded_bits(const char *isa)
{
    enum { N = 70003 };
    for (int kind = 0; kind < KINDS; kind++)
        for (int threads = 1; threads <= 2; threads++) {
            buffer_state = 77;
            mx_bf16 *param = make_values(N, MX_BF16, -1, 1);
            float *grad = make_values(N, MX_F32, -2, 2);
            grad[5] = NAN;
            omp_set_num_threads(threads);
            take_steps(kind, param, grad, N, 1e-3f, (mx_rounding){.stochastic = true, .key = 99}, 3);
            CHECK(isnan(mx_from_bf16(param[5])) && guard_intact(param, N, MX_BF16), "kind %d on %s", kind, isa);
            if (!expected_rounded[kind])
                expected_rounded[kind] = param;
            CHECK(memcmp(expected_rounded[kind], param, N * sizeof *param) == 0,
                  "kind %d, %d threads: other bits on %s", kind, threads, isa);
            if (expected_rounded[kind] != param)
                free(param);
            free(grad);
        }
}

/* 1 - 2^-11 lies at 1/8 of the way from 1 to the next smaller bf16 number, 1 - 2^-8; -1 + 2^-11 likewise. An update
 * that has no effect, and one to a number that is there, are exact. Over steps the mean moves on as the exact one. */
static void check_mean(const char *isa)
{
    enum { N = 1 << 16, STEPS_ON = 32 };
    mx_bf16 *param = malloc(N * sizeof *param);
    float *grad = malloc(N * sizeof *grad);
    const mx_rounding r = {.stochastic = true, .key = 5};
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < N; i++) {
            param[i] = mx_to_bf16((float)sign);
            grad[i] = i < N / 2 ? (float)sign : 0.0f;
        }
        mx_sgd s = {.param = {param, MX_BF16}, .grad = {grad, MX_F32}, .lr = 0x1p-11f, .grad_scale = 1, .rounding = r};
        mx_sgd_run(&s, N);
        int moved = 0, wrong = 0, runs = 0;
        for (int i = 0; i < N; i++) {
            float x = mx_from_bf16(param[i]) * (float)sign;
            moved += i < N / 2 && x == 1 - 0x1p-8f;
            wrong += x != 1 && !(i < N / 2 && x == 1 - 0x1p-8f);
            runs += i > 0 && i < N / 2 && param[i] != param[i - 1];
        }
        double share = moved / (N / 2.0), pairs = runs / (N / 2.0);
        CHECK(wrong == 0 && fabs(share - 0.125) < 5 * sqrt(0.125 * 0.875 / (N / 2.0)), "%g moved, %d wrong on %s",
              share, wrong, isa);
        CHECK(fabs(pairs - 2 * 0.125 * 0.875) < 5 * sqrt(0.22 / (N / 2.0)), "neighbours depend: %g on %s", pairs, isa);
    }
    for (int i = 0; i < N; i++) {
        param[i] = mx_to_bf16(1);
        grad[i] = 1;
    }
    mx_sgd s = {.param = {param, MX_BF16}, .grad = {grad, MX_F32}, .lr = 0x1p-12f, .grad_scale = 1, .rounding = r};
    for (int step = 0; step < STEPS_ON; step++) {
        s.rounding.key = (uint64_t)step * 1000003;
        mx_sgd_run(&s, N);
    }
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += (double)mx_from_bf16(param[i]);
    /* Each step adds a variance of at most (2^-8 / 2)^2. */
    double off = sum / N - (1 - STEPS_ON * 0x1p-12);
    CHECK(fabs(off) < 5 * 0x1p-9 * sqrt(STEPS_ON / (double)N), "the mean is off by %g after %d steps on %s", off,
          STEPS_ON, isa);
    free(param);
    free(grad);
}

/* A matrix of ROWS x COLUMNS whose parts are updated by themselves gets the bits that the whole gets. */
static void check_parts(const char *isa)
{
    enum { ROWS = 37, COLUMNS = 90, N = ROWS * COLUMNS, FROM = 30, TO = 77, SKIP = 100 };
    for (int kind = 0; kind < KINDS; kind++) {
        buffer_state = 3;
        mx_bf16 *whole = make_values(N, MX_BF16, -1, 1), part[N], rest[N];
        float *grad = make_values(N, MX_F32, -2, 2), part_grad[N];
        int64_t n = 0;
        for (int row = 20; row < ROWS; row++) /* rows from 20 on, some columns */
            for (int c = FROM; c < TO; c++) {
                part[n] = whole[row * COLUMNS + c];
                part_grad[n++] = grad[row * COLUMNS + c];
            }
        memcpy(rest, part, sizeof rest);
        mx_rounding r = {.stochastic = true, .key = 8};
        take_steps(kind, whole, grad, N, 1e-3f, r, 2);
        r.origin = 20 * COLUMNS + FROM;
        r.width = TO - FROM;
        r.stride = COLUMNS;
        take_steps(kind, part, part_grad, n, 1e-3f, r, 2);
        r.first = SKIP; /* what one of several ranks updates */
        take_steps(kind, rest + SKIP, part_grad + SKIP, n - SKIP, 1e-3f, r, 2);
        int wrong = 0, wrong_rest = 0;
        for (int64_t i = 0; i < n; i++) {
            mx_bf16 want = whole[(20 + i / (TO - FROM)) * COLUMNS + FROM + i % (TO - FROM)];
            wrong += part[i] != want;
            wrong_rest += i >= SKIP && rest[i] != want;
        }
        CHECK(wrong == 0 && wrong_rest == 0, "kind %d: %d and %d differ on %s", kind, wrong, wrong_rest, isa);
        free(whole);
        free(grad);
    }
    /* Numbers of more than 32 bits: a run is cut where their upper half changes. */
    mx_bf16 one[64], two[64];
    float grad[64];
    for (int i = 0; i < 64; i++) {
        one[i] = two[i] = mx_to_bf16(1);
        grad[i] = 1;
    }
    mx_rounding r = {.stochastic = true, .key = 8, .origin = ((int64_t)1 << 32) - 20};
    take_steps(1, one, grad, 64, 1e-3f, r, 1);
    r.origin += 30;
    take_steps(1, two + 30, grad + 30, 34, 1e-3f, r, 1);
    CHECK(memcmp(one + 30, two + 30, 34 * sizeof *one) == 0, "beyond 2^32 on %s", isa);
}

int main(void)
{
    for_each_isa(check_all);
    for_each_isa(check_rounded_bits);
    for_each_isa(check_mean);
    for_each_isa(check_parts);
    for (int kind = 0; kind < KINDS; kind++)
        free(expected_rounded[kind]);
    return check_done();
}
