/* A file driver for HDF5 that hides write errors from the library and keeps the first one for the writer.
 *
 * HDF5 does not survive a failure while it closes a file: on a full disk it crashes when the program ends. So the
 * driver tells the library that every write succeeds, and the writer checks for an error after each step. */
#ifndef MX_IO_HDF5_DRIVER_H
#define MX_IO_HDF5_DRIVER_H

#include "io/hdf5_internal.h"

/* Makes `access` open files through the driver. *error becomes the errno of the first failure; it must stay valid while
 * the file is open. */
herr_t mx_h5_use_driver(hid_t access, int *error);

#endif
