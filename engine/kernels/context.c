#include "kernels/context.h"

static mx_kernels paths[MX_ISAS];

/* Once, before main: a path has what it does not list from the one below it. */
__attribute__((constructor)) static void make_paths(void)
{
    static const mx_kernels *const listed[MX_ISAS] = {
        [MX_ISA_PORTABLE] = &mx_kernels_portable, [MX_ISA_AVX2] = &mx_kernels_avx2,
        [MX_ISA_AVX512] = &mx_kernels_avx512,     [MX_ISA_AVX512_BF16] = &mx_kernels_avx512_bf16,
        [MX_ISA_AMX] = &mx_kernels_amx,
    };
    for (int isa = 0; isa < MX_ISAS; isa++) {
        mx_kernels *own = &paths[isa];
        const mx_kernels *below = &paths[isa > 0 ? isa - 1 : 0];
        *own = *listed[isa];
#define INHERIT(type, name) own->name = own->name ? own->name : below->name;
        MX_KERNELS(INHERIT)
    }
}

const mx_kernels *mx_kernels_of(mx_isa isa) { return &paths[isa]; }

const mx_kernels *mx_kernels_current(void) { return &paths[mx_isa_current()]; }
