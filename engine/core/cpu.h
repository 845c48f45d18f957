/* The processor: which instruction sets it has, how many cores this rank may use, how large its caches are. */
#ifndef MX_CORE_CPU_H
#define MX_CORE_CPU_H

#include "core/status.h"

#include <stdint.h>

/* Paths through the kernels, each a superset of the one before it. The last is avx512_bf16 with products in tiles. */
typedef enum mx_isa {
    MX_ISA_PORTABLE,
    MX_ISA_AVX2,
    MX_ISA_AVX512,
    MX_ISA_AVX512_BF16,
    MX_ISA_AMX,
    MX_ISAS,
} mx_isa;

const char *mx_isa_name(mx_isa isa);

/* The last path in the list that this processor runs and the system permits, never changing. */
mx_isa mx_isa_best(void);

/* The path in use: what mx_isa_use chose, or the fastest one (avx512 where avx512_bf16 is there but slower). */
mx_isa mx_isa_current(void);

/* Chooses a path by name ("portable", "avx2", "avx512", "avx512_bf16", "amx"). Fails when unknown or beyond
 * mx_isa_best. */
mx_status mx_isa_use(const char *name);

const char *mx_cpu_model(void);      /* as /proc/cpuinfo gives it */
int mx_cpu_cores(void);              /* logical cores that this process may run on */
int64_t mx_cpu_l2_bytes(void);       /* per core; 512 KiB when unknown */
int64_t mx_cpu_l3_bytes(void);       /* shared; 16 MiB when unknown */
int64_t mx_cpu_l3_share_bytes(void); /* mx_cpu_l3_bytes over the machine's cores: what one can count on */
int64_t mx_cpu_memory_bytes(void);   /* physical memory of the machine */

/* Sets the calling thread and the OpenMP pool to flush denormals: they slow arithmetic by a factor of up to 100. */
void mx_cpu_flush_denormals(void);

#endif
