/* JSON lines: extracts one text from a line that holds a JSON object.
 *
 * JSON is accepted as by Python's json.loads: NaN, Infinity and -Infinity are values, numbers may have any size, the
 * last of several equal keys counts, and an escape may be half of a surrogate pair. Values of other keys are skipped at
 * any nesting depth. A byte-order mark before the object is ignored. Pure; not collective. */
#ifndef MX_DATA_JSON_LINE_H
#define MX_DATA_JSON_LINE_H

#include "core/status.h"

#include <stddef.h>

/* The text of the key `field`: *text_bytes bytes of valid UTF-8. *text is NULL for a line of spaces only. The caller
 * frees *text. MX_ERR_VALUE if the line is not JSON ("column 3: ..."), not an object, or has no text under that key;
 * the message says which. */
mx_status mx_json_line_text(const char *line, size_t bytes, const char *field, char **text, size_t *text_bytes);

#endif
