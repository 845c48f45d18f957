/* The machine's time. The current device's time, which may be simulated, is mx_clock (core/device.h). */
#ifndef MX_CORE_CLOCK_H
#define MX_CORE_CLOCK_H

double mx_now(void); /* seconds of the machine's monotonic clock */

double mx_started(void); /* mx_now() at the first call of this function: main calls it first */

#endif
