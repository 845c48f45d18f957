/* What the mxlua program adds to a Lua state and to the module mx.core: the parts of main.c that speak Lua. */
#ifndef MX_BIND_PROGRAM_H
#define MX_BIND_PROGRAM_H

#include "core/status.h"

#include <limits.h>
#include <lua.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A Lua function (index of the script in argv, argv): opens the standard libraries and mx.core, makes
 * lua/ beside the program the first place to look for modules, sets `arg`, replaces os.exit by one that ends all
 * ranks, and lets reading or assigning an undeclared global raise. */
int mxl_open_program(lua_State *L);

/* The folder that lua/, scripts/ and configs/ are in, with a slash at its end: the sources of a build, or
 * PREFIX/share/mxlua of an installed program. False where there is none. */
bool mxl_find_root(char folder[PATH_MAX]);

/* Where the file `path` of the command line is: there, or below the root where it is named scripts/... or configs/...
 * and is missing below the current directory. MX_ERR_IO naming both places when it is in neither. */
mx_status mxl_find_file(const char *path, char found[PATH_MAX]);

/* Whether the file `script` is one of the project's own scripts. */
bool mxl_is_shipped_script(const char *script);

/* The versions of everything, and what was found of the machine. */
void mxl_print_versions(FILE *file);

/* SIGINT raises an error in the Lua code of L from now on, once; NULL: it ends the process, as it does at first. */
void mxl_catch_interrupt(lua_State *L);

/* The whole file ("-": standard input) into memory that the caller frees. MX_ERR_IO naming the path. */
mx_status mxl_read_file(const char *path, char **text, int64_t *bytes);

void mxl_sleep(double seconds);

#endif
