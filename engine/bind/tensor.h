/* What the files that bind tensors share: tensor.c reads, tensor_index.c looks up t[i] and t.name, tensor_operators.c
 * computes, tensor_new.c makes, tensor_text.c prints. */
#ifndef MX_BIND_TENSOR_H
#define MX_BIND_TENSOR_H

#include "core/tensor.h"

#include <lauxlib.h>
#include <lua.h>

/* The tensor at stack index i even when released: for its shape, name and gradient. Raises when it is none. */
mx_tensor *mxl_any_tensor(lua_State *L, int i);

/* Element number i, in row-major order, of a tensor with values. */
double mxl_element(const mx_tensor *t, int64_t i);

/* Pushes it: a float of a float tensor, an integer of an integer one. */
void mxl_push_element(lua_State *L, const mx_tensor *t, int64_t i);

/* Sets it; false when the value does not fit an integer dtype. */
bool mxl_set_element(const mx_tensor *t, int64_t i, double value);

/* Metamethods: + - * / ^ and the order of tensors of one element. */
extern const luaL_Reg mxl_tensor_operators[];

/* Sets __index and __newindex of the metatable at -2; takes the table of methods at -1 off the stack. */
void mxl_set_tensor_index(lua_State *L);

/* Pushes the table of functions that make tensors. */
int mxl_open_tensor_new(lua_State *L);

/* tostring(t): its values, cut to fit a screen, and "[f32 tensor of size 2x3]". */
int mxl_tensor_tostring(lua_State *L);

#endif
