/* Products of many sizes in one call: each has the bits of the same product alone, on every path and number of threads.
 */
#include "check.h"
#include "core/cpu.h"
#include "core/element.h"
#include "isas.h"
#include "kernels/gemm.h"

#include <omp.h>
#include <string.h>

/* Rows of the products: none, one, few (the thin path), many; and one that is cut into runs of columns or that all
 * threads do together. */
static const int64_t ROWS[] = {0, 1, 8, 9, 70, 3, 0, 130};
enum { PRODUCTS = sizeof ROWS / sizeof *ROWS, K = 300 };

static uint64_t random_state = 11;

static float random_value(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 33) / (float)(1u << 30) - 1.0f;
}

static void *random_array(mx_dtype dtype, int64_t n)
{
    void *data = malloc((size_t)n * mx_dtype_bytes(dtype) + 1);
    for (int64_t i = 0; data && i < n; i++)
        mx_set_float(data, i, random_value(), dtype);
    return data;
}

typedef struct operands {
    mx_dtype a, b, c;
    bool trans_a, trans_b, accumulate;
    int64_t n;
} operands;

static void check_one(const operands *o)
{
    mx_gemm many[PRODUCTS], alone[PRODUCTS];
    int64_t c_bytes = 130 * o->n * (int64_t)mx_dtype_bytes(o->c);
    for (int i = 0; i < PRODUCTS; i++) {
        int64_t m = ROWS[i];
        mx_gemm g = {.m = m, .n = o->n, .k = K, .alpha = 1, .accumulate = o->accumulate};
        g.a = (mx_matrix){random_array(o->a, m * K), o->a, o->trans_a ? m : K, o->trans_a};
        g.b = (mx_matrix){random_array(o->b, K * o->n), o->b, o->trans_b ? K : o->n, o->trans_b};
        g.c = (mx_matrix){random_array(o->c, 130 * o->n), o->c, o->n, false};
        many[i] = alone[i] = g;
        alone[i].c.data = malloc((size_t)c_bytes);
        if (!alone[i].c.data || !g.c.data)
            abort();
        memcpy(alone[i].c.data, g.c.data, (size_t)c_bytes);
        CHECK(mx_gemm_run(&alone[i]) == MX_OK, "%s", mx_message());
    }
    CHECK(mx_gemm_many(many, PRODUCTS) == MX_OK, "%s", mx_message());
    for (int i = 0; i < PRODUCTS; i++) {
        CHECK(memcmp(many[i].c.data, alone[i].c.data, (size_t)c_bytes) == 0,
              "%s, %d threads: product %d of %lld rows, n = %lld, dtypes %d %d %d", mx_isa_name(mx_isa_current()),
              omp_get_max_threads(), i, (long long)ROWS[i], (long long)o->n, (int)o->a, (int)o->b, (int)o->c);
        free(many[i].a.data);
        free(many[i].b.data);
        free(many[i].c.data);
        free(alone[i].c.data);
    }
}

static void check_path(void)
{
    static const operands cases[] = {
        {MX_BF16, MX_F32, MX_BF16, false, false, false, 48}, {MX_BF16, MX_BF16, MX_F32, false, true, true, 75},
        {MX_F32, MX_BF16, MX_F32, true, false, false, 48},   {MX_F32, MX_F32, MX_F32, false, false, false, 64},
        {MX_F32, MX_F32, MX_BF16, false, true, false, 33},   {MX_BF16, MX_F32, MX_BF16, false, false, false, 2100},
    };
    /* The portable path is too slow for the wide one. */
    size_t n = sizeof cases / sizeof *cases - (mx_isa_current() == MX_ISA_PORTABLE);
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        for (size_t i = 0; i < n; i++)
            check_one(&cases[i]);
    }
}

int main(void)
{
    if (no_isa())
        return check_done();
    for (mx_isa isa = FIRST_ISA; isa <= mx_isa_best(); isa++) {
        CHECK(mx_isa_use(mx_isa_name(isa)) == MX_OK, "%s", mx_message());
        check_path();
    }
    CHECK(mx_gemm_many(NULL, 0) == MX_OK, "%s", mx_message());
    return check_done();
}
