/* YAML: parses configuration texts to values, with libyaml and the scalars of YAML 1.2's core schema.
 *
 * Plain scalars: null (~, null, or nothing), true and false, integers (decimal, 0x, 0o; 64 bits), floats (1e-5, .5,
 * .inf, .nan). A decimal number may have single underscores between its digits, as in YAML 1.1: 1_000. Everything else,
 * and everything in quotes, is a string: `yes` and `2024-01-01` are strings.
 *
 * Refused, with line and column: a key given twice, a key that is not a scalar, anchors and aliases, merge keys,
 * explicit tags, a second document, nesting deeper than MX_VALUE_DEPTH, a text of more than MX_YAML_BYTES. */
#ifndef MX_IO_YAML_H
#define MX_IO_YAML_H

#include "io/value.h"

enum { MX_YAML_BYTES = 4 << 20 };

/* Parses `bytes` bytes at `text`. `name` is the name of the file: every message starts with "NAME:LINE:COLUMN: ". An
 * empty text gives null. MX_ERR_VALUE, with *out null, for refused or invalid YAML; MX_ERR_MEMORY. */
mx_status mx_yaml_parse(const char *text, size_t bytes, const char *name, mx_value *out);

#endif
