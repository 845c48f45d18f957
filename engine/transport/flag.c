#define _GNU_SOURCE
#include "transport/flag.h"

#include "core/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAUSES = 64 }; /* pause instructions between two looks at the clock */

static double spin_s = 100e-6; /* longer than a wake-up takes, or else one rank's sleep would make the other sleep */

void mx_flag_set_spin_us(double us) { spin_s = 1e-6 * us; }

void mx_flag_set(mx_flag *f, uint32_t value)
{
    /* Sequentially consistent, like the sleeper's two steps: at least one of the two ranks sees the other's step. */
    atomic_store(&f->value, value);
    if (atomic_load(&f->sleepers))
        syscall(SYS_futex, &f->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool spin(const mx_flag *f, uint32_t value)
{
    if (mx_flag_reached(f, value))
        return true;
    double end = mx_now() + spin_s;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (mx_flag_reached(f, value))
                return true;
            __builtin_ia32_pause();
        }
    } while (mx_now() < end);
    return false;
}

bool mx_flag_wait(mx_flag *f, uint32_t value, double patience_s)
{
    if (spin(f, value))
        return true;
    double end = mx_now() + patience_s;
    bool reached = false;
    atomic_fetch_add(&f->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&f->value);
        reached = (int32_t)(seen - value) >= 0;
        double left = end - mx_now();
        if (reached || left <= 0)
            break;
        struct timespec t = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        syscall(SYS_futex, &f->value, FUTEX_WAIT, seen, &t, NULL, 0);
    }
    atomic_fetch_sub(&f->sleepers, 1);
    return reached;
}
