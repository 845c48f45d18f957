/* JSON: parses and writes values, with jansson. Keys are written in sorted order, so equal values give equal bytes. */
#ifndef MX_IO_JSON_H
#define MX_IO_JSON_H

#include "io/value.h"

/* Reads one JSON value of any kind. Messages start with "NAME:LINE:COLUMN: ". MX_ERR_VALUE for invalid JSON, a key
 * given twice, a number beyond 64 bits, or nesting deeper than MX_VALUE_DEPTH. */
mx_status mx_json_parse(const char *text, size_t bytes, const char *name, mx_value *out);

/* Writes `value`. indent 0: one line without extra spaces; otherwise this many spaces per level. A float is written
 * with the fewest of 15 to 17 digits that read back as the same number, and always with a '.' or an 'e'. MX_ERR_VALUE
 * for a number that is not finite or a string that is not UTF-8; the message says where in the value it is. The caller
 * frees *text, which ends with a zero byte. */
mx_status mx_json_encode(const mx_value *value, int indent, char **text, size_t *bytes);

#endif
