/* How HDF5 reaches a file that we write: a file driver that keeps the system's first error to itself.
 *
 * HDF5 does not survive a failure while it closes a file (a full disk: it crashes when the program ends). So the
 * library is told that every write succeeds, and the writer asks for the error after each step. */
#ifndef MX_IO_HDF5_DRIVER_H
#define MX_IO_HDF5_DRIVER_H

#include "io/hdf5_internal.h"

/* Makes `access` open files through the driver. *error becomes the errno of the first failure; it must stay valid while
 * the file is open. */
herr_t mx_h5_use_driver(hid_t access, int *error);

#endif
