/* Time: the machine's, and that of a simulated device, which passes only where something is charged. */
#ifndef MX_CORE_CLOCK_H
#define MX_CORE_CLOCK_H

#include <stdbool.h>

double mx_now(void); /* seconds of the machine's monotonic clock */

/* Seconds of the clock that the script sees: mx_now, or while it is simulated the time up to which the device has
 * computed. Script's thread only. */
double mx_clock(void);
bool mx_clock_is_simulated(void);

/* Simulated time begins at 0; `on` again begins anew. */
void mx_clock_simulate(bool on);
void mx_clock_advance_to(double seconds); /* of simulated time; never back */

#endif
