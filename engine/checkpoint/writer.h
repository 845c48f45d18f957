/* Writes HDF5 files in the background: the script hands over tensors, and a separate thread writes and syncs the file.
 *
 * Files are written one after the other, in the order in which they were started. The values must not change until the
 * file is finished, so hand over a copy of a tensor that will change. An error is returned when the script waits for
 * the file. Script's thread only. Not collective. */
#ifndef MX_CHECKPOINT_WRITER_H
#define MX_CHECKPOINT_WRITER_H

#include "io/hdf5.h"

typedef struct mx_writer mx_writer;

/* Starts writing `path` as mx_h5_create, put, put_attributes and commit would: tensors[i] under names[i]. Takes over
 * the references to the tensors, whatever the outcome; copies the names and attributes. First waits for jobs in flight
 * on the tensors. MX_ERR_STATE for a tensor without values, MX_ERR_MEMORY. */
mx_status mx_writer_start(const char *path, int64_t count, const char *const *names, mx_tensor *const *tensors,
                          const mx_value *attributes, mx_writer **out);

/* Whether writing has ended, with or without success; does not wait. */
bool mx_writer_finished(const mx_writer *writer);

/* Waits for the file, releases the tensors, and returns the outcome. Later calls return the same. */
mx_status mx_writer_wait(mx_writer *writer);

/* Waits for the file and frees the writer. NULL is allowed. */
void mx_writer_free(mx_writer *writer);

#endif
