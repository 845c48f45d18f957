/* The processor: its instruction sets, the number of cores that this rank may use, and the sizes of its caches. */
#ifndef MX_CORE_CPU_H
#define MX_CORE_CPU_H

#include "core/status.h"

#include <stdbool.h>
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

/* The last path in the list that the processor supports and the system permits; never changes. */
mx_isa mx_isa_best(void);

/* The path in use: the one chosen by mx_isa_use, or the fastest one (avx512 if avx512_bf16 exists but is slower). */
mx_isa mx_isa_current(void);

/* Chooses a path by name ("portable", "avx2", "avx512", "avx512_bf16", "amx"). Fails if it is unknown or beyond
 * mx_isa_best. */
mx_status mx_isa_use(const char *name);

/* Instructions that multiply bytes. Each is a property of the processor and not a path: VPDPBUSD on vectors of 512 bits
 * (AVX512_VNNI), and TDPBSSD in tiles (AMX-INT8), which only the path amx uses. */
typedef enum mx_cpu_flag {
    MX_CPU_VNNI,
    MX_CPU_AMX_INT8,
    MX_CPU_FLAGS,
} mx_cpu_flag;

bool mx_cpu_has(mx_cpu_flag flag);

/* false leaves an instruction unused, for tests and measurements; true uses it again if it is there. */
void mx_cpu_use(mx_cpu_flag flag, bool on);

/* Whether the processor itself fetches what loops will read, so that they need not ask for it. On Zen 5 a core reads
 * four rows side by side at 43 GB/s, but at 35 GB/s with a prefetch for each cache line. Intel's processors stop at the
 * end of each page of 4 KiB, and Emerald Rapids reads a quarter slower unasked. */
bool mx_cpu_reads_ahead(void);

/* For tests, which run both kinds of loops. */
void mx_cpu_assume_reads_ahead(bool on);

const char *mx_cpu_model(void); /* from /proc/cpuinfo */
int mx_cpu_cores(void);         /* logical cores that this process may run on */
int64_t mx_cpu_l2_bytes(void);  /* per core; 512 KiB if unknown */
int64_t mx_cpu_l3_bytes(void);  /* shared; 16 MiB if unknown */
/* The share of one core: mx_cpu_l3_bytes divided by the machine's cores. Too large on a virtual machine, which sees the
 * whole cache and few of the cores that share it. */
int64_t mx_cpu_l3_share_bytes(void);

/* Lets the calling thread and the OpenMP pool flush denormals to zero: they slow arithmetic down by a factor of up to
 * 100. */
void mx_cpu_flush_denormals(void);

#endif
