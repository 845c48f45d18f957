#define _GNU_SOURCE
#include "core/cpu.h"

#include <cpuid.h>
#include <immintrin.h>
#include <omp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const isa_names[MX_ISAS] = {
    [MX_ISA_PORTABLE] = "portable",       [MX_ISA_AVX2] = "avx2", [MX_ISA_AVX512] = "avx512",
    [MX_ISA_AVX512_BF16] = "avx512_bf16", [MX_ISA_AMX] = "amx",
};

static int chosen = -1;

const char *mx_isa_name(mx_isa isa) { return isa_names[isa]; }

/* All `bits` of register EDX of CPUID's leaf 7. */
static bool processor_has(unsigned bits)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bits) == bits;
}

/* Requests permission to use tiles (Linux 5.16 and later; Documentation/arch/x86/xstate.rst). It is granted to the
 * process and all its threads. */
static bool system_grants_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static mx_isa best, fastest;
static bool present[MX_CPU_FLAGS], used[MX_CPU_FLAGS], reads_ahead;

/* Runs once, because kernels ask at every call, and under a hypervisor CPUID takes microseconds; before the
 * constructors of other files, which ask too.
 *
 * Measured on Sapphire and Emerald Rapids: VDPBF16PS has half the rate of f32 FMA. Intel's processors with AVX512_FP16
 * are these and their successors. All have AMX, but a hypervisor or an old system may keep it from us. */
__attribute__((constructor(101))) static void look_at_processor(void)
{
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    enum { AMX_BF16 = 1 << 22, AVX512_FP16 = 1 << 23, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    bool has_slow_bf16 = avx512_bf16 && __builtin_cpu_is("intel") && processor_has(AVX512_FP16);
    if (avx512_bf16 && processor_has(AMX_BF16 | AMX_TILE) && system_grants_amx())
        best = MX_ISA_AMX;
    else
        best = avx512_bf16 ? MX_ISA_AVX512_BF16 : avx512 ? MX_ISA_AVX512 : avx2 ? MX_ISA_AVX2 : MX_ISA_PORTABLE;
    used[MX_CPU_VNNI] = present[MX_CPU_VNNI] = __builtin_cpu_supports("avx512vnni");
    used[MX_CPU_AMX_INT8] = present[MX_CPU_AMX_INT8] = best == MX_ISA_AMX && processor_has(AMX_INT8);
    reads_ahead = __builtin_cpu_is("amd");
    fastest = has_slow_bf16 && best != MX_ISA_AMX ? MX_ISA_AVX512 : best;
}

bool mx_cpu_has(mx_cpu_flag flag) { return used[flag]; }

void mx_cpu_use(mx_cpu_flag flag, bool on) { used[flag] = on && present[flag]; }

bool mx_cpu_reads_ahead(void) { return reads_ahead; }

void mx_cpu_assume_reads_ahead(bool on) { reads_ahead = on; }

mx_isa mx_isa_best(void) { return best; }

mx_isa mx_isa_current(void) { return chosen < 0 ? fastest : (mx_isa)chosen; }

mx_status mx_isa_use(const char *name)
{
    for (int isa = 0; isa < MX_ISAS; isa++) {
        if (strcmp(name, isa_names[isa]) != 0)
            continue;
        if (isa > (int)mx_isa_best())
            return mx_fail(MX_ERR_VALUE, "isa '%s' cannot be used: the best that this processor has%s is '%s'", name,
                           isa == MX_ISA_AMX ? " and the system permits" : "", isa_names[mx_isa_best()]);
        chosen = isa;
        return MX_OK;
    }
    return mx_fail(MX_ERR_VALUE, "unknown isa '%s'; expected portable, avx2, avx512, avx512_bf16 or amx", name);
}

const char *mx_cpu_model(void)
{
    static char model[128];
    if (model[0])
        return model;
    snprintf(model, sizeof model, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return model;
    char line[256];
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", model) == 1)
            break;
    fclose(file);
    return model;
}

int mx_cpu_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return 1;
}

int64_t mx_cpu_l2_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? bytes : 512 * 1024;
}

/* The Linux kernel gives the cache that this core can use; sysconf may give the sum over all parts of the package. */
static int64_t read_l3_bytes(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    long kib = 0;
    if (file) {
        if (fscanf(file, "%ldK", &kib) != 1)
            kib = 0;
        fclose(file);
    }
    if (kib > 0)
        return kib * 1024;
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? bytes : 16 * 1024 * 1024;
}

int64_t mx_cpu_l3_bytes(void)
{
    static int64_t bytes; /* kernels ask at every call */
    if (bytes == 0)
        bytes = read_l3_bytes();
    return bytes;
}

int64_t mx_cpu_l3_share_bytes(void)
{
    static int64_t bytes;
    if (bytes == 0) { /* once: every elementwise kernel asks, and sysconf opens a file to count the cores */
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        bytes = mx_cpu_l3_bytes() / (cores > 0 ? cores : 1);
    }
    return bytes;
}

void mx_cpu_flush_denormals(void)
{
#pragma omp parallel
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ and DAZ in MXCSR, a register of each thread */
}
