#include "core/clock.h"

#include <time.h>

double mx_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mx_started(void)
{
    static double started;
    if (started == 0)
        started = mx_now();
    return started;
}
