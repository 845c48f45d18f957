#define _GNU_SOURCE
#include "bind/program.h"

#include "bind/bind.h"
#include "core/stop.h"
#include "mesh/comm.h"
#include "transport/guardian.h"
#include "transport/mpi.h"

#include <errno.h>
#include <limits.h>
#include <lualib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- modules ---- */

/* Finds the folder lua/ of mxlua's modules: next to the program's folder (build/mxlua), inside it, or where it is
 * installed.
 */
static bool find_library(char folder[PATH_MAX])
{
    static const char *const places[] = {"/../lua", "/lua", "/../share/mxlua/lua"};
    char program[PATH_MAX], module[PATH_MAX + 32];
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes <= 0)
        return false;
    program[bytes] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(module, sizeof module, "%s%s/mx", program, places[i]);
        if (realpath(module, folder)) {
            *strrchr(folder, '/') = '\0';
            return true;
        }
    }
    return false;
}

bool mxl_find_root(char folder[PATH_MAX])
{
    if (!find_library(folder))
        return false;
    strrchr(folder, '/')[1] = '\0';
    return true;
}

mx_status mxl_find_file(const char *path, char found[PATH_MAX])
{
    bool shipped = strncmp(path, "scripts/", 8) == 0 || strncmp(path, "configs/", 8) == 0;
    char root[PATH_MAX];
    struct stat about;
    bool missing = stat(path, &about) != 0 && (errno == ENOENT || errno == ENOTDIR);
    if (missing && shipped && mxl_find_root(root)) {
        if (snprintf(found, PATH_MAX, "%s%s", root, path) < PATH_MAX && stat(found, &about) == 0)
            return MX_OK;
        return mx_fail(MX_ERR_IO, "there is no file '%s', neither below the current directory nor below %s", path,
                       root);
    }
    if (snprintf(found, PATH_MAX, "%s", path) >= PATH_MAX)
        return mx_fail(MX_ERR_IO, "cannot read '%s': %s", path, strerror(ENAMETOOLONG));
    return MX_OK;
}

bool mxl_is_shipped_script(const char *script)
{
    char path[PATH_MAX], root[PATH_MAX];
    if (!realpath(script, path) || !mxl_find_root(root))
        return false;
    size_t bytes = strlen(root);
    return strncmp(path, root, bytes) == 0 && strncmp(path + bytes, "scripts/", 8) == 0;
}

static void set_package_path(lua_State *L)
{
    char folder[PATH_MAX];
    if (!find_library(folder))
        return;
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "path");
    lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s", folder, folder, lua_tostring(L, -1));
    lua_setfield(L, -3, "path");
    lua_pop(L, 2);
}

/* ---- globals ---- */

static void push_any(lua_State *L, int i) { luaL_tolstring(L, i, NULL); }

static int read_undeclared(lua_State *L)
{
    push_any(L, 2);
    return luaL_error(L, "global '%s' is not defined", lua_tostring(L, -1));
}

static int assign_undeclared(lua_State *L)
{
    push_any(L, 2);
    const char *name = lua_tostring(L, -1);
    return luaL_error(L, "global '%s' is not declared; write 'local %s', or rawset(_G, '%s', value) if it is meant",
                      name, name, name);
}

static void make_globals_strict(lua_State *L)
{
    lua_pushglobaltable(L);
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, read_undeclared);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, assign_undeclared);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
}

/* ---- the end ---- */

/* os.exit([status]): success waits until all ranks end; any other status ends all ranks now. */
static int exit_all(lua_State *L)
{
    lua_Integer status = lua_isnoneornil(L, 1) ? EXIT_SUCCESS
                         : lua_isboolean(L, 1) ? (lua_toboolean(L, 1) ? EXIT_SUCCESS : EXIT_FAILURE)
                                               : luaL_checkinteger(L, 1);
    if (status != EXIT_SUCCESS) /* only eight bits of it are kept */
        mx_mpi_abort((status & 0xff) ? (int)(status & 0xff) : EXIT_FAILURE);
    lua_close(L);
    mx_comm_end();
    fflush(stdout);
    if (mx_guardian_launcher_is_gone()) /* MPI's exit handlers would wait for the launcher */
        _exit(EXIT_SUCCESS);
    exit(EXIT_SUCCESS);
}

static void replace_exit(lua_State *L)
{
    lua_getglobal(L, "os");
    lua_pushcfunction(L, exit_all);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}

/* As in lua: arg[0] is the script; arguments after it count from 1, those before it are negative. */
static void set_arguments(lua_State *L, char **argv, int script_index)
{
    lua_newtable(L);
    for (int i = 0; argv[i]; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script_index);
    }
    lua_setglobal(L, "arg");
}

int mxl_open_program(lua_State *L)
{
    int script_index = (int)lua_tointeger(L, 1);
    char **argv = lua_touserdata(L, 2);
    luaL_openlibs(L);
    lua_warning(L, "@on", 0); /* show errors in finalisers */
    set_package_path(L);
    luaL_requiref(L, "mx.core", luaopen_mx_core, 0);
    lua_pop(L, 1);
    set_arguments(L, argv, script_index);
    replace_exit(L);
    make_globals_strict(L);
    return 0;
}

/* ---- interrupts ---- */

static lua_State *interrupted_state;

static void raise_interrupt(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    luaL_error(L, "interrupted");
}

/* A signal handler may only set a hook. If Lua does not reach the hook, a second SIGINT ends the process. */
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    mx_stop_end_on_interrupt();
    lua_sethook(interrupted_state, raise_interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

void mxl_catch_interrupt(lua_State *L)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    interrupted_state = L;
    if (L)
        sigaction(SIGINT, &action, NULL);
    else
        mx_stop_end_on_interrupt();
}

/* ---- files and time ---- */

static mx_status read_stream(FILE *file, const char *path, char **text, int64_t *bytes)
{
    size_t room = 0, used = 0;
    char *buffer = NULL;
    do {
        if (room - used < 4096) {
            room = room ? 2 * room : 65536;
            char *larger = realloc(buffer, room);
            if (!larger) {
                free(buffer);
                return mx_fail(MX_ERR_MEMORY, "no memory to read '%s'", path);
            }
            buffer = larger;
        }
        size_t got = fread(buffer + used, 1, room - used, file);
        used += got;
        if (got == 0)
            break;
    } while (!feof(file));
    if (ferror(file)) {
        free(buffer);
        return mx_fail(MX_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
    }
    *text = buffer;
    *bytes = (int64_t)used;
    return MX_OK;
}

mx_status mxl_read_file(const char *path, char **text, int64_t *bytes)
{
    bool standard_input = strcmp(path, "-") == 0;
    FILE *file = standard_input ? stdin : fopen(path, "r");
    if (!file)
        return mx_fail(MX_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
    errno = 0;
    mx_status status = read_stream(file, path, text, bytes);
    if (!standard_input)
        fclose(file);
    return status;
}

void mxl_sleep(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}
