/* The machine's time. The current device's time, which may be simulated, is mx_clock (core/device.h). */
#ifndef MX_CORE_CLOCK_H
#define MX_CORE_CLOCK_H

double mx_now(void); /* seconds of the machine's monotonic clock */

double mx_processor_now(void); /* seconds for which processors have run the calling thread */

/* The clock of this machine as a device: mx_now at first. Beside other programs mx_processor_now says more, as long as
 * one thread does all the work. The main thread sets it. */
extern double (*mx_host_clock)(void);

double mx_started(void); /* mx_now() at the first call of this function: main calls it first */

#endif
