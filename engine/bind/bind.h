/* Functions that all binding files use: they turn a status into a Lua error and a tensor into a Lua value.
 *
 * Each file of this folder binds one engine module: mxl_open_NAME pushes a table of its functions, which bind.c merges
 * into the module `mx.core`. A binding never raises an error while it owns something: it releases first, then calls
 * mxl_try. */
#ifndef MX_BIND_BIND_H
#define MX_BIND_BIND_H

#include "ops/op.h"

#include <lauxlib.h>
#include <lua.h>

#define MXL_TENSOR "mx.tensor" /* metatable name of a tensor's userdata */

/* The running Lua thread, set by every function that takes a tensor from the stack. The tape and checks of in-place
 * changes use it to find the script's line. */
extern lua_State *mxl_running;

/* Pushes "file:line: " of the user's line: the innermost Lua frame outside lua/mx, or the innermost frame if all are
 * inside. */
void mxl_push_where(lua_State *L);

/* Raises mx_message() with the script's file and line if status is not MX_OK. */
void mxl_try(lua_State *L, mx_status status);

/* Whether the value at index i is the message that mxl_try raised most recently. */
bool mxl_is_engine_error(lua_State *L, int i);

/* The tensor at stack index i. Raises an error if it is not a tensor, or names it if it has been released. */
mx_tensor *mxl_check_tensor(lua_State *L, int i);
mx_tensor *mxl_test_tensor(lua_State *L, int i); /* NULL if it is not a tensor */

/* The tensor at stack index i with values that may be read, or changed: waits for jobs in flight. */
mx_tensor *mxl_check_values(lua_State *L, int i, bool for_writing);

/* Pushes t, taking over the caller's reference. */
void mxl_push_tensor(lua_State *L, mx_tensor *t);

/* Reads a table of integers at index i as a shape; error messages contain `what`. */
void mxl_check_shape(lua_State *L, int i, const char *what, mx_shape *shape);
/* Raises an error if the table at index i has other keys than 1 .. n: it is read as a shape, so they would be lost. */
void mxl_check_list(lua_State *L, int i, const char *what);
mx_dtype mxl_check_dtype(lua_State *L, int i, mx_dtype standard); /* nil or none: `standard` */

/* Mesh axes at index i: a name, a list of names, or nothing for all ranks (0). Raises an error for an unknown name. */
uint32_t mxl_check_axes(lua_State *L, int i);

/* Reads the attributes of an operation from the table at index `table` (0: none given) into MX_ATTR_BYTES bytes. A
 * plain sequence is the operation's first shape: t:reshape{2, 3}. */
void mxl_read_attrs(lua_State *L, const mx_op *op, int table, void *to);

/* The operation's attribute for which a plain list may be given: its first shape, or NULL. */
const mx_attr *mxl_listed_attr(const mx_op *op);

/* "trans_a, trans_b, dtype", on the stack. */
const char *mxl_push_attr_names(lua_State *L, const mx_op *op);

/* The name of input i, written to `name`, if it may be left out; NULL if not. */
const char *mxl_optional_input(const mx_op *op, int i, char name[32]);

/* Passes the current line of the user's script to mx_comm_set_site. */
void mxl_set_site(lua_State *L);

/* Read a field of the option table at index i; an absent field gives the default. A wrong type raises an error that
 * names the field. */
double mxl_field_number(lua_State *L, int i, const char *name, double standard);
int64_t mxl_field_integer(lua_State *L, int i, const char *name, int64_t standard);
bool mxl_field_boolean(lua_State *L, int i, const char *name, bool standard);
/* Raises an error for a string key that is not in `names` (NULL at the end), and names the nearest one. */
void mxl_check_fields(lua_State *L, int i, const char *const *names, const char *what);

/* Raises "WHAT has no option 'GIVEN'; did you mean ...?", or lists the options if none is near. */
void mxl_unknown_name(lua_State *L, const char *given, const char *const *names, const char *what);

/* Hides the metatable at the top of the stack from scripts: getmetatable returns its name, so scripts cannot call
 * metamethods such as __gc. */
void mxl_hide_metatable(lua_State *L, const char *name);

/* Pops the table of methods at the top of the stack and gives it to the metatable below it. Using another name on an
 * object is an error that names the nearest method. `what`: "a step". */
void mxl_set_methods(lua_State *L, const char *what);

/* Raises "WHAT 'GIVEN'; did you mean ...?" with the nearest key of the table at index `table`. */
void mxl_unknown_field(lua_State *L, const char *what, const char *given, int table);

/* The next seed of the stream for random operations without a seed. */
mx_seed mxl_draw_seed(void);
mx_seed mxl_seed_stream(const mx_seed *position); /* the position of the stream, which becomes `position` unless NULL */

int mxl_open_tensor(lua_State *L);
int mxl_open_stream(lua_State *L);
int mxl_open_ops(lua_State *L);
int mxl_open_op_info(lua_State *L);
int mxl_open_tape(lua_State *L);
int mxl_open_grad(lua_State *L);
int mxl_open_custom(lua_State *L);
int mxl_open_memory(lua_State *L);
int mxl_open_offload(lua_State *L);
int mxl_open_profile(lua_State *L);
int mxl_open_check(lua_State *L);
int mxl_open_step(lua_State *L);
int mxl_open_mesh(lua_State *L);
int mxl_open_sim(lua_State *L);
int mxl_open_system(lua_State *L);
int mxl_open_trace(lua_State *L);
int mxl_open_nearest(lua_State *L);
int mxl_open_io(lua_State *L);

/* Pushes the module mx.core: all bindings in one table. */
int luaopen_mx_core(lua_State *L);

#endif
