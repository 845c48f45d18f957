/* GGUF, versions 2 and 3: metadata by dotted keys, then tensors, often quantised in blocks. Read through weights.h.
 *
 * Metadata becomes a map from key to integer, number, boolean, string or array; f32 numbers are widened. Shapes are
 * turned to row-major: what GGUF calls dimension 0 is the last one here. */
#ifndef MX_WEIGHTS_GGUF_H
#define MX_WEIGHTS_GGUF_H

#include "weights/weights.h"

/* Reads and checks the header of the opened w->fd into w. Refused (MX_ERR_IO): other versions, big-endian files, keys
 * or names given twice, types that do not exist, counts and lengths that the file cannot hold, an alignment that is no
 * multiple of 8, tensors that are not aligned, share bytes or lie outside of the file, and more than GGUF_VALUES_MOST
 * values of metadata. */
mx_status mx_gguf_read_header(mx_weights *w);

enum { GGUF_VALUES_MOST = 1 << 22, GGUF_ARRAY_MOST = 1 << 21 };

/* The type of that number; NULL: there is none. */
const mx_stored_type *mx_gguf_type(uint32_t number);

#endif
