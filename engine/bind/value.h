/* Converts values (io/value.h) to Lua and back; and boxes, which own C objects while Lua may raise an error. */
#ifndef MX_BIND_VALUE_H
#define MX_BIND_VALUE_H

#include "io/value.h"

#include <lauxlib.h>
#include <lua.h>

/* Pushes a userdata of `bytes` zero bytes that calls `destroy` on them when it is collected or goes out of scope. A
 * binding keeps what it owns in a box, so that Lua's own errors (out of memory) leak nothing. */
void *mxl_push_box(lua_State *L, size_t bytes, void (*destroy)(void *));

/* Pushes a box with a value, initially null. */
mx_value *mxl_push_value_box(lua_State *L);

/* Pushes `value`: maps and arrays as tables, null as mx.io.null. */
void mxl_push_value(lua_State *L, const mx_value *value);

/* Reads the Lua value at stack index i into *out, which is in a box. A table is an array if its keys are 1..n or if
 * mx.io.array made it; it is a map if all its keys are strings. Anything else raises an error with its position inside
 * the value. */
void mxl_check_value(lua_State *L, int i, mx_value *out);

/* Adds `null` and `array` to the table on top. */
void mxl_add_value_fields(lua_State *L);

#endif
