/* safetensors: eight bytes with the length of a JSON header, the header, then the values of one tensor after the other.
 *
 * Read through weights.h. Written here: the plan comes first (names, dtypes, shapes), then each tensor in any order, so
 * that no more than one of them need be in memory; the file is there whole at the commit or not at all. f32, bf16, i32,
 * u8 and i8 are stored as they are. Not collective: one rank writes. */
#ifndef MX_WEIGHTS_SAFETENSORS_H
#define MX_WEIGHTS_SAFETENSORS_H

#include "weights/weights.h"

/* Reads and checks the header of the opened w->fd into w. Refused (MX_ERR_IO): a header of more than 100 MB or beyond
 * the file, one that is no JSON of the right form, a name given twice, sizes that do not fit, bytes that belong to no
 * tensor or to two. */
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

/* The values of a planned tensor. MX_ERR_VALUE for a name that is not planned or was put before, MX_ERR_DTYPE or
 * MX_ERR_SHAPE where dtype or shape differ from the plan. */
mx_status mx_safetensors_put(mx_safetensors_writer *w, const char *name, const mx_tensor *t);

/* MX_ERR_STATE when a planned tensor was not put. Frees the writer, whatever the outcome. */
mx_status mx_safetensors_commit(mx_safetensors_writer *w);
void mx_safetensors_abort(mx_safetensors_writer *w); /* the same, leaving no file; NULL is allowed */

#endif
