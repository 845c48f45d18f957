/* Flags: counters in shared memory by which ranks of one machine wait for each other.
 *
 * A counter only grows (and wraps around). Who waits spins for some microseconds, then sleeps in the kernel until the
 * counter changes: a rank that waits long costs the others no time on shared cores. */
#ifndef MX_TRANSPORT_FLAG_H
#define MX_TRANSPORT_FLAG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mx_flag {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} mx_flag;

static inline bool mx_flag_reached(const mx_flag *f, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(&f->value, memory_order_acquire) - value) >= 0;
}

/* Sets the counter, which the caller alone changes, and wakes who sleeps. What was written before is seen by who waits.
 */
void mx_flag_set(mx_flag *f, uint32_t value);

/* Returns when the counter has reached the value, or after about `patience_s`: whether it has. */
bool mx_flag_wait(mx_flag *f, uint32_t value, double patience_s);

/* How long waiting spins before it sleeps. Short where ranks share cores. */
void mx_flag_set_spin_us(double us);

#endif
