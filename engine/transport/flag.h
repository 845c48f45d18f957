/* Flags: counters in shared memory with which the ranks of a node wait for each other.
 *
 * A counter only grows (and wraps around). A waiting rank spins for some microseconds, then sleeps in the kernel until
 * the counter changes, so a long wait takes no time from other ranks on the same cores. */
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

/* Sets the counter and wakes the sleeping ranks. Only one rank sets a counter. Memory written before the call is
 * visible to ranks that have waited for the value. */
void mx_flag_set(mx_flag *f, uint32_t value);

/* Waits until the counter has reached the value, at most about `patience_s` seconds. Returns whether it has. */
bool mx_flag_wait(mx_flag *f, uint32_t value, double patience_s);

/* How many microseconds a waiting rank spins before it sleeps. Use a short time if ranks share cores. */
void mx_flag_set_spin_us(double us);

#endif
