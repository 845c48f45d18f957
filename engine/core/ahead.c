#include "core/ahead.h"

static bool reads_ahead;

__attribute__((constructor)) static void look_at_processor(void)
{
    __builtin_cpu_init();
    reads_ahead = __builtin_cpu_is("amd");
}

bool mx_cpu_reads_ahead(void) { return reads_ahead; }

void mx_cpu_assume_reads_ahead(bool on) { reads_ahead = on; }
