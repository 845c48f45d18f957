/* Reads GGUF files, versions 2 and 3: metadata with dotted keys, then tensors, often quantised in blocks. Used through
 * weights.h.
 *
 * Metadata becomes a map from key to integer, float, boolean, string or array; f32 numbers become doubles. Shapes
 * become row-major: GGUF's dimension 0 is the last dimension here. */
#ifndef MX_WEIGHTS_GGUF_H
#define MX_WEIGHTS_GGUF_H

#include "weights/weights.h"

/* Reads and checks the header of the opened w->fd into w. Refused (MX_ERR_IO): other versions, big-endian files, keys
 * or names given twice, unknown types, counts and lengths larger than the file, an alignment that is not a multiple of
 * 8, tensors that are not aligned, overlap or are outside the file, and more than GGUF_VALUES_MOST values of metadata.
 */
mx_status mx_gguf_read_header(mx_weights *w);

enum { GGUF_VALUES_MOST = 1 << 22, GGUF_ARRAY_MOST = 1 << 21 };

/* The type with this number; false if there is none. */
bool mx_gguf_type(uint32_t number, mx_stored_type *type);

#endif
