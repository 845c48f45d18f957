/* Every path has every kernel: its own, or that of the path below it. No kernel is run, so this covers the paths that
 * this processor lacks. And the path that is used unless --isa names one has the fastest instruction for bf16. */
#include "kernels/context.h"

#include "check.h"
#include "kernels/peak.h"

#include <string.h>

/* The three that kernels/context.h names. */
static bool may_lack(mx_isa isa, const char *kernel)
{
    return (isa == MX_ISA_PORTABLE && strcmp(kernel, "thin") == 0) ||
           (isa < MX_ISA_AVX512 && strcmp(kernel, "micro_vnni") == 0) ||
           (isa < MX_ISA_AMX && strcmp(kernel, "micro_i8_tiles") == 0);
}

/* Instructions differ in rate by factors of two, so a factor of 1.5 is far from each: 0.01 s of a busy machine suffice.
 */
static void check_fastest(void)
{
    double rates[MX_ISAS] = {0}, highest = 0;
    for (int round = 0; round < 3; round++)
        for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
            double rate = 0;
            CHECK(!mx_peak_fma((mx_isa)isa, MX_BF16, 1, 0.01, &rate), "%s: no peak", mx_isa_name((mx_isa)isa));
            rates[isa] = rate > rates[isa] ? rate : rates[isa];
            highest = rate > highest ? rate : highest;
        }
    CHECK(rates[mx_isa_current()] > highest / 1.5, "%s has %.0f GFLOP/s, another path %.0f",
          mx_isa_name(mx_isa_current()), rates[mx_isa_current()] * 1e-9, highest * 1e-9);
}

/* On every path there is a rate of products in the caches, of both dtypes that are packed. */
static void check_products(void)
{
    const char *before = mx_isa_name(mx_isa_current());
    double rate = 0;
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        CHECK(mx_isa_use(mx_isa_name((mx_isa)isa)) == MX_OK, "%s", mx_message());
        for (int bytes = 0; bytes < 2; bytes++) {
            rate = 0;
            CHECK(mx_peak_product(bytes ? MX_I8 : MX_BF16, 2, 0.01, &rate) == MX_OK && rate > 1e6, "%s: %g op/s",
                  mx_isa_name((mx_isa)isa), rate);
        }
    }
    CHECK(mx_peak_product(MX_F32, 1, 0.01, &rate) == MX_ERR_DTYPE &&
              strstr(mx_message(), "multiplies f32; expected bf16 or i8"),
          "f32: %s", mx_message());
    CHECK(mx_isa_use(before) == MX_OK, "%s", mx_message());
}

int main(void)
{
    for (int isa = 0; isa < MX_ISAS; isa++) {
        const mx_kernels *k = mx_kernels_of((mx_isa)isa);
#define CHECK_IS_THERE(type, name)                                                                                     \
    CHECK(k->name || may_lack((mx_isa)isa, #name), "%s has no %s", mx_isa_name((mx_isa)isa), #name);
        MX_KERNELS(CHECK_IS_THERE)
    }
    const mx_kernels *amx = mx_kernels_of(MX_ISA_AMX), *below = mx_kernels_of(MX_ISA_AVX512_BF16);
    CHECK(amx->peak_copy == below->peak_copy && amx->random == below->random, "amx does not inherit");
    CHECK(amx->attention_f32 == below->attention_f32 && amx->peak_f32 == below->peak_f32, "amx does not inherit f32");
    CHECK(amx->micro != below->micro && amx->attention_bf16 != below->attention_bf16, "amx has no products of its own");
    CHECK(mx_kernels_current() == mx_kernels_of(mx_isa_current()), "another path than the one in use");
    check_fastest();
    check_products();
    return check_done();
}
