/* The host for tests: tensors have addresses that only the device understands.
 *
 * Code that takes values by mx_data anywhere but in the host function of an operation fails an assertion; code that
 * looks where mx_address says ends the process with SIGSEGV. What is mapped is a copy, as on a device with memory of
 * its own. Everything else is that of the host, and so are all results. */
#ifndef MX_HOST_GUARDED_H
#define MX_HOST_GUARDED_H

/* Makes it current. After mx_mpi_start. Not collective. */
void mx_guarded_use(void);

#endif
