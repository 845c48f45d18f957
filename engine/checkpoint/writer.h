/* HDF5 files written beside the script: the tensors are handed over, a thread of its own writes and syncs the file.
 *
 * Files are written one after the other, in the order in which they were started. The values must not change until the
 * file is finished: who goes on computing with a tensor hands over a copy. What goes wrong is told by the file itself,
 * when it is asked. Script's thread only. Not collective. */
#ifndef MX_CHECKPOINT_WRITER_H
#define MX_CHECKPOINT_WRITER_H

#include "io/hdf5.h"

typedef struct mx_writer mx_writer;

/* Starts writing `path` as mx_h5_create, put, put_attributes and commit would: tensors[i] under names[i]. Takes over
 * the references to the tensors, whatever the outcome; copies the names and attributes. Waits first for what is under
 * way in the tensors. MX_ERR_STATE for one without values, MX_ERR_MEMORY. */
mx_status mx_writer_start(const char *path, int64_t count, const char *const *names, mx_tensor *const *tensors,
                          const mx_value *attributes, mx_writer **out);

/* Whether the file is finished, well or not; does not wait. */
bool mx_writer_finished(const mx_writer *writer);

/* Waits for the file, lets go of the tensors, and returns what came of it; again whenever it is called again. */
mx_status mx_writer_wait(mx_writer *writer);

/* Waits for the file and frees the writer. NULL is allowed. */
void mx_writer_free(mx_writer *writer);

#endif
