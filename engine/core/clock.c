#include "core/clock.h"

#include <time.h>

static bool simulated;
static double clock_s;

double mx_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mx_clock(void) { return simulated ? clock_s : mx_now(); }

bool mx_clock_is_simulated(void) { return simulated; }

void mx_clock_simulate(bool on)
{
    simulated = on;
    clock_s = 0;
}

void mx_clock_advance_to(double seconds) { clock_s = seconds > clock_s ? seconds : clock_s; }
