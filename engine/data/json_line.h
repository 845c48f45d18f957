/* JSON lines: takes one text out of a line that holds a JSON object.
 *
 * A line is JSON where Python's json.loads reads it: NaN, Infinity and -Infinity are values, numbers may be of any
 * size, the last of several equal keys counts, and an escape may be half of a surrogate pair. Values of other keys are
 * skipped, however deeply they are nested. A byte-order mark before the object is ignored. Pure; not collective. */
#ifndef MX_DATA_JSON_LINE_H
#define MX_DATA_JSON_LINE_H

#include "core/status.h"

#include <stddef.h>

/* The text of the key `field`, of *text_bytes bytes of valid UTF-8; *text is NULL for a line of nothing but spaces. The
 * caller frees *text. MX_ERR_VALUE says what is wrong with the line: it is no JSON ("column 3: ..."), no object, or has
 * no such text. */
mx_status mx_json_line_text(const char *line, size_t bytes, const char *field, char **text, size_t *text_bytes);

#endif
