/* Lua functions that the engine calls in the middle of its work: hooks of gradients, operations of a script. Errors in
 * them become statuses; mxl_try raises them again with the function's own message. */
#ifndef MX_BIND_CALLBACK_H
#define MX_BIND_CALLBACK_H

#include "core/status.h"

#include <lua.h>

/* Pops the value at the top and keeps it until mxl_forget_value, which may be called at any time, also after Lua has
 * ended. */
int mxl_hold_value(lua_State *L);
void mxl_forget_value(int held);

/* Calls the function below the n_arguments values at the top. Pushes n_results values on success, nothing otherwise;
 * then the status says "WHAT: message of the error". */
mx_status mxl_callback(lua_State *L, int n_arguments, int n_results, const char *what);

#endif
