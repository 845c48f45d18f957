/* Reads and writes safetensors files: eight bytes with the length of a JSON header, the header, then the values of one
 * tensor after the other.
 *
 * Reading goes through weights.h. A writer first gets the plan (names, dtypes, shapes) and then the tensors in any
 * order, each as a whole or some rows at a time. The complete file appears at the commit, or no file. f32, bf16, i32,
 * u8 and i8 are stored unchanged. Not collective: one rank writes. */
#ifndef MX_WEIGHTS_SAFETENSORS_H
#define MX_WEIGHTS_SAFETENSORS_H

#include "weights/weights.h"

/* Reads and checks the header of the opened w->fd into w. Refused (MX_ERR_IO): a header of more than 100 MB or larger
 * than the file, a header that is not JSON of the right form, a name given twice, sizes that do not match, bytes that
 * belong to no tensor or to two. */
mx_status mx_safetensors_read_header(mx_weights *w);

typedef struct mx_planned_tensor {
    const char *name;
    mx_dtype dtype;
    mx_shape shape;
} mx_planned_tensor;

typedef struct mx_safetensors_writer mx_safetensors_writer;

/* Starts a file of these tensors. MX_ERR_VALUE for a name given twice, or "__metadata__". */
mx_status mx_safetensors_create(const char *path, const mx_planned_tensor *plan, int64_t count,
                                mx_safetensors_writer **out);

/* Writes a planned tensor, or its next rows (of dimension 0), from the first to the last. MX_ERR_VALUE for a name that
 * is not planned or has all of its rows, MX_ERR_DTYPE or MX_ERR_SHAPE if dtype or shape do not fit the plan. */
mx_status mx_safetensors_put(mx_safetensors_writer *w, const char *name, const mx_tensor *t);

/* MX_ERR_STATE if rows of a planned tensor were not put. Frees the writer, whatever the outcome. */
mx_status mx_safetensors_commit(mx_safetensors_writer *w);
void mx_safetensors_abort(mx_safetensors_writer *w); /* frees the writer and leaves no file; NULL is allowed */

#endif
