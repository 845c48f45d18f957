/* Values: small trees that hold YAML and JSON texts and the attributes of HDF5 files.
 *
 * A value owns everything below it. Maps keep the order of their keys. */
#ifndef MX_IO_VALUE_H
#define MX_IO_VALUE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mx_kind { MX_NULL, MX_BOOL, MX_INT, MX_FLOAT, MX_STRING, MX_ARRAY, MX_MAP } mx_kind;

enum { MX_VALUE_DEPTH = 64 }; /* limit of nesting for reading and writing */

typedef struct mx_entry mx_entry;

typedef struct mx_value {
    mx_kind kind;
    int line, column; /* where it starts in the text, from 1; 0: not read from a text */
    union {
        bool boolean;
        int64_t integer;
        double number;
        struct {
            char *text; /* a string; a zero byte follows the `length` bytes */
            size_t length;
        };
        struct {
            mx_entry *entries; /* an array or a map */
            size_t count, room;
        };
    };
} mx_value;

struct mx_entry {
    char *key;        /* in a map, without zero bytes; NULL in an array */
    int line, column; /* position of the key */
    mx_value value;
};

const char *mx_kind_name(mx_kind kind); /* "a map", "an integer": for messages */

/* Frees what the value owns and makes it MX_NULL. */
void mx_value_free(mx_value *value);

/* The only failure of these functions is MX_ERR_MEMORY. */
mx_status mx_value_set_string(mx_value *value, const char *text, size_t length);

/* Appends an entry with a copy of `key` (NULL for an array) and a null value, which the caller fills. The address is
 * valid until the next append. */
mx_status mx_value_append(mx_value *container, const char *key, mx_entry **out);

/* The value of `key` in a map; NULL if there is none. */
const mx_value *mx_value_get(const mx_value *map, const char *key);

/* The entries of a map, sorted by the bytes of their keys: an array of map->count pointers that the caller frees. */
mx_status mx_value_sorted(const mx_value *map, const mx_entry ***out);

#endif
