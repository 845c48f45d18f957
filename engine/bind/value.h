/* Values (io/value.h) to Lua and back, and boxes that own C things while Lua may raise. */
#ifndef MX_BIND_VALUE_H
#define MX_BIND_VALUE_H

#include "io/value.h"

#include <lauxlib.h>
#include <lua.h>

/* Pushes a userdata of `bytes` zero bytes that calls `destroy` on them when it is collected or goes out of scope: what
 * a binding owns sits in a box, so an error of Lua's own (memory) leaks nothing. */
void *mxl_push_box(lua_State *L, size_t bytes, void (*destroy)(void *));

/* A value in a box of its own, null at first. */
mx_value *mxl_push_value_box(lua_State *L);

/* Pushes `value`: maps and arrays as tables, null as mx.io.null. */
void mxl_push_value(lua_State *L, const mx_value *value);

/* Reads what is at stack index i into *out, which is in a box. A table is an array when its keys are 1..n, or when
 * mx.io.array made it; a map when all its keys are strings. Anything else raises, with its place inside the value. */
void mxl_check_value(lua_State *L, int i, mx_value *out);

/* Adds `null` and `array` to the table on top. */
void mxl_add_value_fields(lua_State *L);

#endif
