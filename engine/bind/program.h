/* The parts of the mxlua program that use Lua: prepares the Lua state and finds scripts and modules. */
#ifndef MX_BIND_PROGRAM_H
#define MX_BIND_PROGRAM_H

#include "core/status.h"

#include <limits.h>
#include <lua.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A Lua function (index of the script in argv, argv). Opens the standard libraries and mx.core, searches modules first
 * in mxlua's own lua/, sets `arg`, replaces os.exit by one that ends all ranks, and makes reading or assigning an
 * undeclared global an error. */
int mxl_open_program(lua_State *L);

/* The folder of lua/, scripts/ and configs/, with a trailing slash: the sources of a build, or PREFIX/share/mxlua of an
 * installed program. False if there is none. */
bool mxl_find_root(char folder[PATH_MAX]);

/* Finds a file of the command line: at `path`; or, if it is missing there and named scripts/... or configs/..., below
 * the root. MX_ERR_IO, naming both places, if it is in neither. */
mx_status mxl_find_file(const char *path, char found[PATH_MAX]);

/* Whether the file `script` is one of the project's own scripts. */
bool mxl_is_shipped_script(const char *script);

/* Prints the versions of mxlua and its libraries, and the properties of the machine. */
void mxl_print_versions(FILE *file);

/* From now on the next SIGINT raises an error in the Lua code of L. NULL: SIGINT ends the process, the initial state.
 */
void mxl_catch_interrupt(lua_State *L);

/* Reads the whole file ("-": standard input) into memory that the caller frees. MX_ERR_IO with the path. */
mx_status mxl_read_file(const char *path, char **text, int64_t *bytes);

void mxl_sleep(double seconds);

#endif
