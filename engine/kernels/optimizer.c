#include "kernels/optimizer.h"

#include "core/cpu.h"

static const mx_optimizer_paths *const paths[MX_VECTOR_ISAS] = {
    [MX_ISA_PORTABLE] = &mx_optimizer_portable,
    [MX_ISA_AVX2] = &mx_optimizer_avx2,
    [MX_ISA_AVX512] = &mx_optimizer_avx512,
    [MX_ISA_AVX512_BF16] = &mx_optimizer_avx512_bf16,
};

void mx_adamw_run(const mx_adamw *a, int64_t n)
{
    const mx_optimizer_paths *path = paths[mx_isa_vectors()];
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        path->adamw(a, first, first + MX_CHUNK < n ? first + MX_CHUNK : n);
}

void mx_sgd_run(const mx_sgd *s, int64_t n)
{
    const mx_optimizer_paths *path = paths[mx_isa_vectors()];
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        path->sgd(s, first, first + MX_CHUNK < n ? first + MX_CHUNK : n);
}
