/* Which instruction sets a test visits: those of this processor; on emulated tiles (tests/amx/emulator.h) amx alone
 * (ON_TILES), since the same test visits the others on the processor itself. */
#ifndef MX_TESTS_ISAS_H
#define MX_TESTS_ISAS_H

#include "core/cpu.h"

#include <stdbool.h>
#include <stdio.h>

#if defined(MX_AMX_EMULATED)
#define FIRST_ISA MX_ISA_AMX
#define ON_TILES true
#else
#define FIRST_ISA MX_ISA_PORTABLE
#define ON_TILES false
#endif

/* True, and says so, where there is none. */
static inline bool no_isa(void)
{
    if (mx_isa_best() >= FIRST_ISA)
        return false;
    printf("SKIP: emulated tiles need a processor with AVX512_BF16 for all else\n");
    return true;
}

#endif
