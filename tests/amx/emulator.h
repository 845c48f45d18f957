/* The tile registers of AMX in plain C, so that the path of tiles is tested on processors that lack them.
 *
 * The Makefile compiles core/cpu.c and the sources of the path once more with MX_AMX_EMULATED, and with this header
 * before their first line. Their objects take the place of the library's in the programs whose names end in _emulated.
 * There, a processor with AVX512_BF16 has AMX, too; one without lacks both.
 *
 * A tile instruction that the processor would refuse (Intel, Software Developer's Manual 2, LDTILECFG to TILEZERO) ends
 * the program with its reason. */
#ifndef MX_TESTS_AMX_EMULATOR_H
#define MX_TESTS_AMX_EMULATOR_H

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <unistd.h>

/* Each thread has tiles of its own, as on the processor. `stride`: bytes from one row in memory to the next. */
void emulated_tile_loadconfig(const void *config);
void emulated_tile_release(void);
void emulated_tile_zero(int number);
void emulated_tile_loadd(int number, const void *base, int64_t stride);
void emulated_tile_stored(int number, void *base, int64_t stride);
void emulated_tile_dpbf16ps(int c, int a, int b);
void emulated_tile_dpbssd(int c, int a, int b);

/* What CPUID says of this processor, and that it has AMX-TILE, AMX-BF16 and AMX-INT8. */
int emulated_cpuid_count(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d);

#if defined(MX_AMX_EMULATED)
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig emulated_tile_loadconfig
#define _tile_release emulated_tile_release
#define _tile_zero emulated_tile_zero
#define _tile_loadd emulated_tile_loadd
#define _tile_stream_loadd emulated_tile_loadd
#define _tile_stored emulated_tile_stored
#define _tile_dpbf16ps emulated_tile_dpbf16ps
#define _tile_dpbssd emulated_tile_dpbssd
#define __get_cpuid_count emulated_cpuid_count
#define syscall(...) 0 /* the system's permission to use tiles */
#endif

#endif
