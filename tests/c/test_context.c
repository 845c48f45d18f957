/* Every path has every kernel: its own, or that of the path below it. Nothing is run, so this covers the paths that
 * this processor lacks. */
#include "kernels/context.h"

#include "check.h"

#include <string.h>

/* The two that kernels/context.h names. */
static bool may_lack(mx_isa isa, const char *kernel)
{
    return (isa == MX_ISA_PORTABLE && strcmp(kernel, "thin") == 0) ||
           (isa < MX_ISA_AVX512 && strcmp(kernel, "micro_vnni") == 0);
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
    return check_done();
}
