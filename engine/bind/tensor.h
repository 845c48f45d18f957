/* Functions that the files of tensor bindings share: tensor.c reads values, tensor_index.c looks up t[i] and t.name,
 * tensor_choose.c does t[mask], tensor_operators.c has the operators, tensor_split.c cuts into parts, tensor_new.c
 * creates tensors, tensor_text.c prints them. */
#ifndef MX_BIND_TENSOR_H
#define MX_BIND_TENSOR_H

#include "core/tensor.h"

#include <lauxlib.h>
#include <lua.h>

/* The tensor at stack index i, even if released: for its shape, name and gradient. Raises an error if it is not a
 * tensor. */
mx_tensor *mxl_any_tensor(lua_State *L, int i);

/* Element number i, in row-major order; NaN on a device without values. Integers over 2^53 are rounded. */
double mxl_element(lua_State *L, const mx_tensor *t, int64_t i);

/* Pushes the element: a float from a float tensor, an integer from an integer tensor. */
void mxl_push_element(lua_State *L, const mx_tensor *t, int64_t i);

/* Sets the element to the Lua number at stack index `number`; false if it does not fit an integer dtype. mxl_to_value
 * does the same in an array of values. Lua integers are not rounded. */
bool mxl_set_element(lua_State *L, const mx_tensor *t, int64_t i, int number);
bool mxl_to_value(lua_State *L, int number, void *values, int64_t i, mx_dtype dtype);

/* The Lua number at stack index 3 for an assignment `what` = number; an error if the dtype of t cannot hold it. */
mx_status mxl_assigned_number(lua_State *L, const mx_tensor *t, const char *what, double *number);

/* Metamethods: + - * / // ^ & | ~ << >> and comparisons of tensors with one element. */
extern const luaL_Reg mxl_tensor_operators[];

/* Functions and methods: split, chunk. */
extern const luaL_Reg mxl_tensor_parts[];

/* Sets __index and __newindex of the metatable at -2; pops the table of methods at -1. */
void mxl_set_tensor_index(lua_State *L);

/* t[mask] and t[ids] (tensor_choose.c): pushes the elements or rows of t where the mask `by` (u8, with the first sizes
 * of t, or all) is not 0; or the rows with these ids (i32, from 0). */
int mxl_push_chosen(lua_State *L, mx_tensor *t, mx_tensor *by);

/* t[by] = the number or tensor at stack index 3; a tensor has the shape of t[by]. */
void mxl_write_chosen(lua_State *L, mx_tensor *t, mx_tensor *by);

/* Copies value, whose size in dimension `dim` is the number of ids (i32, one dimension, from 0), to the ids of t. */
mx_status mxl_write_rows(mx_tensor *t, int dim, mx_tensor *ids, mx_tensor *value);

/* Replaces the numbers at the bottom of the stack by one list of them: mx.zeros(2, 3) is mx.zeros{2, 3}. */
void mxl_join_sizes(lua_State *L);

/* Pushes the table of functions that create tensors. */
int mxl_open_tensor_new(lua_State *L);

/* tostring(t): its values, shortened to fit a screen, and "[f32 tensor of size 2x3 on host, 1 NaN]". */
int mxl_tensor_tostring(lua_State *L);

/* mx.print_options{precision = 4, edge = 5} -> the options in use */
int mxl_print_options(lua_State *L);

#endif
