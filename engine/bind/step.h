/* Steps that were opened and not closed. */
#ifndef MX_BIND_STEP_H
#define MX_BIND_STEP_H

#include "core/scope.h"

#include <lua.h>

/* Raises when Lua has collected a step that nobody had closed, naming the line that opened it. */
void mxl_check_lost_steps(lua_State *L);

/* Raises when a step is open inside `scope`, which is about to be closed. */
void mxl_check_inner_steps(lua_State *L, const mx_scope *scope);

/* At the program's end: pushes a message about the outermost open step, if there is one. */
bool mxl_push_open_step(lua_State *L);

#endif
