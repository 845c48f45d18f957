/* JSON by jansson: values to texts and back. What we write has its keys sorted, so equal values give equal bytes. */
#ifndef MX_IO_JSON_H
#define MX_IO_JSON_H

#include "io/value.h"

/* Reads one JSON value of any kind. Messages start with "NAME:LINE:COLUMN: ". MX_ERR_VALUE for what is no JSON, a key
 * given twice, a number beyond 64 bits, nesting deeper than MX_VALUE_DEPTH. */
mx_status mx_json_parse(const char *text, size_t bytes, const char *name, mx_value *out);

/* Writes `value`. indent 0: one line without spaces after the separators' own; else that many spaces a level. A float
 * is written with the fewest of 15 to 17 digits that read back as the same number, and always with a '.' or an 'e'.
 * MX_ERR_VALUE for a number that is not finite and a string that is not UTF-8, naming where in the value it is.
 * The caller frees *text, which ends in a zero byte. */
mx_status mx_json_encode(const mx_value *value, int indent, char **text, size_t *bytes);

#endif
