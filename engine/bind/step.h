/* Detects steps that were opened and not closed. */
#ifndef MX_BIND_STEP_H
#define MX_BIND_STEP_H

#include "core/scope.h"

#include <lua.h>

/* Raises an error if Lua has collected a step that was not closed, and names the line that opened it. */
void mxl_check_lost_steps(lua_State *L);

/* Raises an error if a step is open inside `scope`, which is about to be closed. */
void mxl_check_inner_steps(lua_State *L, const mx_scope *scope);

/* At the end of the program: pushes a message about the outermost open step, if there is one, and returns true. */
bool mxl_push_open_step(lua_State *L);

#endif
