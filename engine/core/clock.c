#include "core/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mx_now(void) { return seconds_of(CLOCK_MONOTONIC); }

double mx_processor_now(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

double (*mx_host_clock)(void) = mx_now;

double mx_started(void)
{
    static double started;
    if (started == 0)
        started = mx_now();
    return started;
}
