/* What the binding files share: the one place where a status becomes a Lua error and a tensor becomes a Lua value.
 *
 * Each file of this folder binds one engine module: mxl_open_NAME pushes a table of its functions, which bind.c
 * merges into the module `mx.core`. A binding never raises while it owns something: it releases first, then calls
 * mxl_try. */
#ifndef MX_BIND_BIND_H
#define MX_BIND_BIND_H

#include "ops/op.h"

#include <lauxlib.h>
#include <lua.h>

#define MXL_TENSOR "mx.tensor" /* metatable name of a tensor's userdata */

/* The Lua thread that runs: whoever takes a tensor from the stack sets it. It tells where the script is, for records of
 * the tape and changes in place. */
extern lua_State *mxl_running;

/* Raises mx_message() with the script's file and line when status is not MX_OK. */
void mxl_try(lua_State *L, mx_status status);

/* Whether the value at index i is the message that mxl_try raised last. */
bool mxl_is_engine_error(lua_State *L, int i);

/* The tensor at stack index i. Raises when it is none, or when it has been released (naming it). */
mx_tensor *mxl_check_tensor(lua_State *L, int i);
mx_tensor *mxl_test_tensor(lua_State *L, int i); /* NULL when it is no tensor */

/* The tensor at stack index i with values that may be read, or changed: what is under way is waited for. */
mx_tensor *mxl_check_values(lua_State *L, int i, bool for_writing);

/* Pushes t, taking over the caller's reference. */
void mxl_push_tensor(lua_State *L, mx_tensor *t);

/* A table of integers at index i as a shape; raises with `what` in the message. */
void mxl_check_shape(lua_State *L, int i, const char *what, mx_shape *shape);
/* Raises when the table at index i has other keys than 1 .. n: it stands for a shape, and would lose them. */
void mxl_check_list(lua_State *L, int i, const char *what);
mx_dtype mxl_check_dtype(lua_State *L, int i, mx_dtype standard); /* nil or none: `standard` */

/* Mesh axes at index i: a name, a list of names, or nothing for all ranks (0). Raises for an unknown one. */
uint32_t mxl_check_axes(lua_State *L, int i);

/* Reads the attributes of an operation from the table at index `table` (0: none were given) into MX_ATTR_BYTES bytes.
 */
void mxl_read_attrs(lua_State *L, const mx_op *op, int table, void *to);

/* Tells communication at which line of the user's script we are. */
void mxl_set_site(lua_State *L);

/* Field access for option tables at index i; absent: the standard value. A wrong type raises, naming the field. */
double mxl_field_number(lua_State *L, int i, const char *name, double standard);
int64_t mxl_field_integer(lua_State *L, int i, const char *name, int64_t standard);
bool mxl_field_boolean(lua_State *L, int i, const char *name, bool standard);
/* Raises for a string key that is not in `names` (NULL at the end), with the nearest one. */
void mxl_check_fields(lua_State *L, int i, const char *const *names, const char *what);

/* Raises "WHAT has no option 'GIVEN'; did you mean ...?". */
void mxl_unknown_name(lua_State *L, const char *given, const char *const *names, const char *what);

/* Hides the metatable at the top of the stack from scripts: getmetatable gives its name, so that no script calls what
 * only the collector may. */
void mxl_hide_metatable(lua_State *L, const char *name);

/* Takes the table of methods off the top of the stack: objects of the metatable below it have them, and a name that
 * they lack is an error with the nearest one. `what`: "a step". */
void mxl_set_methods(lua_State *L, const char *what);

/* Raises "WHAT 'GIVEN'; did you mean ...?" with the nearest key of the table at index `table`. */
void mxl_unknown_field(lua_State *L, const char *what, const char *given, int table);

/* The next seed of the stream of unseeded random numbers. */
mx_seed mxl_draw_seed(void);

int mxl_open_tensor(lua_State *L);
int mxl_open_stream(lua_State *L);
int mxl_open_ops(lua_State *L);
int mxl_open_tape(lua_State *L);
int mxl_open_memory(lua_State *L);
int mxl_open_offload(lua_State *L);
int mxl_open_profile(lua_State *L);
int mxl_open_check(lua_State *L);
int mxl_open_step(lua_State *L);
int mxl_open_mesh(lua_State *L);
int mxl_open_sim(lua_State *L);
int mxl_open_system(lua_State *L);
int mxl_open_trace(lua_State *L);
int mxl_open_io(lua_State *L);

/* All of them in one table: the module mx.core. */
int luaopen_mx_core(lua_State *L);

#endif
