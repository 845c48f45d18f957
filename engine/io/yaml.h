/* YAML: configuration texts into values, by libyaml, with the scalars of YAML 1.2's core schema.
 *
 * Plain scalars: null (~, null, nothing), true and false, integers (decimal, 0x, 0o; 64 bits), floats (1e-5, .5, .inf,
 * .nan); all else, and whatever is quoted, is a string: `yes`, `1_000` and `2024-01-01` are strings.
 *
 * Refused, each with its place: a key given twice, a key that is no scalar, anchors and aliases, merge keys, explicit
 * tags, a second document, nesting deeper than MX_VALUE_DEPTH, a text of more than MX_YAML_BYTES. */
#ifndef MX_IO_YAML_H
#define MX_IO_YAML_H

#include "io/value.h"

enum { MX_YAML_BYTES = 4 << 20 };

/* Reads `bytes` bytes at `text`. `name` is the file's, for messages: every one starts with "NAME:LINE:COLUMN: ".
 * An empty text gives null. MX_ERR_VALUE, with *out null, for what is refused or is no YAML; MX_ERR_MEMORY. */
mx_status mx_yaml_parse(const char *text, size_t bytes, const char *name, mx_value *out);

#endif
