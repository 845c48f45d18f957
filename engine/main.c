/* The mxlua program: reads the options, starts and ends MPI, runs Lua, and returns an exit status that shows whether
 * the run succeeded. */
#define _GNU_SOURCE
#include "bind/bind.h"
#include "bind/program.h"
#include "bind/step.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/limits.h"
#include "core/pool.h"
#include "core/stop.h"
#include "core/wrap.h"
#include "host/guarded.h"
#include "mesh/comm.h"
#include "mesh/mesh.h"
#include "mesh/setup.h"
#include "mesh/share.h"
#include "transport/guardian.h"
#include "transport/mpi.h"
#include "transport/threads.h"

#include <errno.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char usage[] = "usage: mxlua [options] [script.lua [config.yml] [key=value ...]]\n"
                            "       mxlua --help NAME\n"
                            "       mxlua script.lua --help\n"
                            "\n"
                            "Runs a Lua script that trains or measures transformer models. Under mpirun, all\n"
                            "ranks run the same script, and each rank is one device.\n"
                            "\n"
                            "  -e CODE              run CODE, before the script if there is one; mx is loaded\n"
                            "  -i                   start a prompt, after the script if there is one\n"
                            "  --threads N          threads per rank. Default: OMP_NUM_THREADS, or else the\n"
                            "                       machine's cores divided by the ranks on it\n"
                            "  --isa NAME           instruction set: portable, avx2, avx512, avx512_bf16 or\n"
                            "                       amx. Default: the fastest that the processor has\n"
                            "  --memory-limit SIZE  limit of tensor memory per rank, such as 4G or 512M\n"
                            "  -v, --version        print versions of the libraries, processor and caches\n"
                            "  -h, --help           print this text; with NAME, explain a function, a key\n"
                            "                       of configs or a name of PyTorch, or find words in\n"
                            "                       these texts; after a script, print the comment at\n"
                            "                       its top, which lists its options\n"
                            "\n"
                            "Examples:\n"
                            "\n"
                            "  mxlua -e 'local a = mx.randn{2, 3}; print(a, a:sum())'\n"
                            "  mxlua scripts/train.lua configs/models/tiny.yml steps=200 learning_rate=1e-3\n"
                            "  mpirun -n 2 mxlua scripts/bench_128b.lua bench_seconds=20\n"
                            "  mxlua --help learning_rate\n"
                            "\n"
                            "The first prints a tensor. The second trains a small model. The third measures a\n"
                            "published job, with two ranks in place of two of its chips. The fourth explains\n"
                            "a key. README.md explains more.\n"
                            "\n"
                            "If a script or config file named scripts/... or configs/... is missing in the\n"
                            "current directory, it is read from the folder that --version shows as \"files\".\n"
                            "Runs write their files (checkpoints/) to the current directory.\n"
                            "\n"
                            "Exit status: 0 if the work is done, or was saved after Ctrl-C, SIGTERM, SIGHUP\n"
                            "or SIGUSR1; 1 after an error on any rank; N after os.exit(N); 128 + N if signal\n"
                            "N ended the run. engine/PROCESS.md explains signals and limits.\n";

typedef struct options {
    const char *code, *isa, *script;
    bool interactive, help, version;
    bool script_help; /* the script is not to run: the comment at its top is asked for */
    int threads;      /* 0: not given */
    int64_t memory_limit_bytes;
    int script_index; /* index of the script in argv */
    char *path;       /* file of the script */
    char *text;       /* text of the script */
    int64_t text_bytes;
} options;

/* ---- options ---- */

/* "4G" or "512M" or "100000". */
static mx_status parse_size(const char *text, int64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        value *= 1024;
    if (end == text || errno || !(value >= 1 && value < 9e18) || (*end && (!unit || end[1])))
        return mx_fail(MX_ERR_VALUE, "'%s' is not a size; expected a number followed by K, M, G or T, such as 4G",
                       text);
    *bytes = (int64_t)value;
    return MX_OK;
}

static mx_status parse_threads(const char *text, int *threads)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > 1024)
        return mx_fail(MX_ERR_VALUE, "--threads: expected a number from 1 to 1024, got '%s'", text);
    *threads = (int)value;
    return MX_OK;
}

/* Reads an option whose value is the next argument. */
static mx_status parse_value(options *o, const char *name, const char *value)
{
    if (!value)
        return mx_fail(MX_ERR_VALUE, "option %s needs a value; see mxlua --help", name);
    if (strcmp(name, "--threads") == 0)
        return parse_threads(value, &o->threads);
    if (strcmp(name, "--memory-limit") == 0)
        return parse_size(value, &o->memory_limit_bytes);
    if (strcmp(name, "--isa") == 0)
        o->isa = value;
    else if (o->code)
        return mx_fail(MX_ERR_VALUE, "-e is given twice");
    else
        o->code = value;
    return MX_OK;
}

static bool is_help(const char *word) { return strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0; }

static mx_status parse_options(options *o, int argc, char **argv)
{
    static const char *const with_value[] = {"-e", "--threads", "--isa", "--memory-limit"};
    int i = 1;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char *name = argv[i];
        bool takes_value = false;
        for (size_t k = 0; k < sizeof with_value / sizeof *with_value; k++)
            takes_value = takes_value || strcmp(name, with_value[k]) == 0;
        if (takes_value) {
            MX_TRY(parse_value(o, name, i + 1 < argc ? argv[i + 1] : NULL));
            i++;
        } else if (strcmp(name, "-i") == 0) {
            o->interactive = true;
        } else if (strcmp(name, "-v") == 0 || strcmp(name, "--version") == 0) {
            o->version = true;
        } else if (is_help(name)) {
            o->help = true;
        } else {
            return mx_fail(MX_ERR_VALUE, "unknown option %s; see mxlua --help", name);
        }
    }
    o->script_index = i;
    o->script = i < argc ? argv[i] : NULL;
    for (int k = i + 1; k < argc; k++)
        o->script_help = o->script_help || is_help(argv[k]);
    const char *ending = o->script ? strrchr(o->script, '.') : NULL;
    if (o->help && ending && strcmp(ending, ".lua") == 0) {
        o->script_help = true;
        o->help = false;
    }
    if (!o->script && !o->code && !o->interactive && !o->version && !o->help)
        return mx_fail(MX_ERR_VALUE, "no script given; see mxlua --help");
    return MX_OK;
}

/* ---- running Lua ---- */

static bool script_is_shipped; /* the running script is one of mxlua's own */

/* Adds a traceback to messages that are strings. Two kinds of messages stay without one: objects with __tostring, and
 * errors of the engine while one of mxlua's own scripts runs. In the second case the user's input was wrong, and lines
 * of a script that the user has not written would not help. Errors in mxlua's own Lua code still get a traceback. */
static int message_handler(lua_State *L)
{
    const char *message = lua_tostring(L, 1);
    if (message && script_is_shipped && mxl_is_engine_error(L, 1)) {
        lua_settop(L, 1);
        return 1;
    }
    if (!message) {
        if (luaL_callmeta(L, 1, "__tostring") && lua_type(L, -1) == LUA_TSTRING)
            return 1;
        message = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    }
    luaL_traceback(L, L, message, 1);
    return 1;
}

/* Prints the message on top of the stack to stderr. If one mistake fails every rank, rank 0 should print it alone, so
 * the other ranks wait until rank 0 has had time to end the run. */
static void report_error(lua_State *L)
{
    if (mx_rank() > 0)
        mxl_sleep(0.3);
    fflush(stdout);
    const char *message = lua_pushfstring(L, "mxlua: rank %d: %s", mx_rank(), lua_tostring(L, -1));
    bool breaks = isatty(STDERR_FILENO) && !strchr(message, '\n'); /* not the lines of a traceback */
    char *wrapped = breaks ? mx_wrap(message, MX_WRAP_COLUMNS) : NULL;
    fprintf(stderr, "%s\n", wrapped ? wrapped : message);
    free(wrapped);
    lua_pop(L, 2);
}

/* Calls the function below its n arguments; true on success. Its results are dropped. */
static bool call(lua_State *L, int n)
{
    int base = lua_gettop(L) - n;
    lua_pushcfunction(L, message_handler);
    lua_insert(L, base);
    int code = lua_pcall(L, n, 0, base);
    lua_remove(L, base);
    if (code == LUA_OK)
        return true;
    report_error(L);
    return false;
}

static bool run_text(lua_State *L, const char *text, size_t bytes, const char *chunk_name, int n_args, char **args)
{
    if (bytes && text[0] == '#') { /* as in "#!/usr/bin/env mxlua"; the newline stays, so that line numbers are right */
        size_t skip = strcspn(text, "\n");
        text += skip;
        bytes -= skip;
    }
    if (luaL_loadbufferx(L, text, bytes, chunk_name, "t") != LUA_OK) {
        report_error(L);
        return false;
    }
    luaL_checkstack(L, n_args + 8, "too many arguments");
    for (int i = 0; i < n_args; i++)
        lua_pushstring(L, args[i]);
    return call(L, n_args);
}

static bool run_script(lua_State *L, const options *o, int argc, char **argv)
{
    lua_pushfstring(L, "@%s", o->path);
    script_is_shipped = mxl_is_shipped_script(o->path);
    bool ok = run_text(L, o->text, (size_t)o->text_bytes, lua_tostring(L, -1), argc - o->script_index - 1,
                       argv + o->script_index + 1);
    lua_pop(L, 1);
    script_is_shipped = false;
    return ok;
}

/* Prints the comment at the top of the script; false if there is none. Then the script gets --help as another word. */
static bool print_comment(const char *text)
{
    if (text[0] == '#')
        text += strcspn(text, "\n") + (strchr(text, '\n') != NULL);
    bool found = strncmp(text, "--", 2) == 0 && strncmp(text, "--[", 3) != 0;
    for (; strncmp(text, "--", 2) == 0 && mx_rank() == 0; text += text[0] == '\n') {
        text += strspn(text, "-");
        text += *text == ' ';
        size_t length = strcspn(text, "\n");
        printf("%.*s\n", (int)length, text);
        text += length;
    }
    return found;
}

/* mxlua --help NAME, or several words. */
static bool explain(lua_State *L, int n_words, char **words)
{
    static const char code[] = "require('mx.help').print(table.concat({ ... }, ' '))";
    return run_text(L, code, sizeof code - 1, "=help", n_words, words);
}

static bool run_prompt(lua_State *L)
{
    static const char prompt[] = "require('mx.prompt')()";
    return run_text(L, prompt, sizeof prompt - 1, "=prompt", 0, NULL);
}

static bool run_all(lua_State *L, const options *o, int argc, char **argv)
{
    lua_pushcfunction(L, mxl_open_program);
    lua_pushinteger(L, o->script_index);
    lua_pushlightuserdata(L, argv);
    if (!call(L, 2))
        return false;
    if (o->help)
        return explain(L, argc - o->script_index, argv + o->script_index);
    if (o->code || o->interactive) {
        static const char load_mx[] = "rawset(_G, 'mx', require 'mx')";
        if (!run_text(L, load_mx, sizeof load_mx - 1, "=mxlua", 0, NULL))
            return false;
    }
    if (o->code && !run_text(L, o->code, strlen(o->code), "=(command line)", 0, NULL))
        return false;
    if (o->script && !run_script(L, o, argc, argv))
        return false;
    return !o->interactive || run_prompt(L);
}

/* ---- the program ---- */

/* Every rank has the same options, so either all ranks fail or none. */
static mx_status prepare(const options *o)
{
    const char *guard = getenv("MXLUA_GUARD");
    if (guard && strcmp(guard, "1") == 0)
        mx_guarded_use();
    if (o->isa)
        MX_TRY(mx_isa_use(o->isa));
    if (o->memory_limit_bytes)
        mx_pool_set_limit(o->memory_limit_bytes);
    MX_TRY(mx_threads_use(o->threads ? o->threads : mx_threads_standard()));
    double threads_per_core;
    MX_TRY(mx_threads_per_core(&threads_per_core));
    if (threads_per_core > 1 && mx_rank() == 0)
        fprintf(
            stderr,
            "mxlua: warning: %d rank(s) of %d thread(s) share %d core(s) of this machine: it is oversubscribed, and "
            "times mean little\n",
            mx_node_ranks(), mx_threads(), mx_node_cores());
    mx_group *all; /* made now: later, MPI would wait for ever for a rank that failed before the first collective */
    return mx_mesh_group(0, &all);
}

static bool fail(void)
{
    if (mx_rank() == 0)
        fprintf(stderr, "mxlua: %s\n", mx_message());
    return false;
}

static void share_text(const char *mine, int64_t mine_bytes, char **text, int64_t *bytes)
{
    if (mx_broadcast_text(mine, mine_bytes, 0, text, bytes) == MX_OK)
        return;
    fprintf(stderr, "mxlua: rank %d: %s\n", mx_rank(), mx_message());
    mx_mpi_abort(EXIT_FAILURE);
}

/* Rank 0 finds and reads the script and broadcasts its path and text. Collective. If it cannot be read, all ranks
 * return false, and only rank 0 prints the message. */
static bool read_script(options *o)
{
    char *mine = NULL, path[PATH_MAX];
    int64_t mine_bytes = 0, path_bytes;
    if (mx_rank() == 0 && (mxl_find_file(o->script, path) != MX_OK || mxl_read_file(path, &mine, &mine_bytes) != MX_OK))
        fail();
    share_text(mine, mine_bytes, &o->text, &o->text_bytes);
    if (o->text)
        share_text(mine ? path : NULL, mine ? (int64_t)strlen(path) : 0, &o->path, &path_bytes);
    free(mine);
    return o->text != NULL;
}

static bool run_lua(const options *o, int argc, char **argv)
{
    lua_State *L = luaL_newstate();
    if (!L) {
        fprintf(stderr, "mxlua: rank %d: no memory for Lua\n", mx_rank());
        mx_mpi_abort(EXIT_FAILURE);
    }
    bool ok = run_all(L, o, argc, argv);
    if (ok && !o->interactive && mxl_push_open_step(L)) {
        report_error(L);
        ok = false;
    }
    if (!ok && mx_processes() > 1)
        mx_mpi_abort(EXIT_FAILURE); /* other ranks may be waiting for this one */
    lua_close(L);
    return ok;
}

static bool run(int argc, char **argv)
{
    options o = {0};
    if (parse_options(&o, argc, argv) != MX_OK)
        return fail();
    if (o.help && !o.script) {
        if (mx_rank() == 0)
            fputs(usage, stdout);
        return true;
    }
    if (prepare(&o) != MX_OK)
        return fail();
    if (o.version && mx_rank() == 0)
        mxl_print_versions(stdout);
    if (o.version && !o.script && !o.code && !o.interactive)
        return true;
    if (o.script && !o.help && !read_script(&o))
        return false;
    if (o.path)
        argv[o.script_index] = o.path;
    bool ok = (o.script_help && o.text && print_comment(o.text)) || run_lua(&o, argc, argv);
    free(o.path);
    free(o.text);
    return ok;
}

/* Constructors of libraries fail if the system's limits are too low, so the first check of limits runs before them. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = mx_limits_before_libraries;

int main(int argc, char **argv)
{
    mx_started();
    prctl(PR_SET_NAME, "mxlua"); /* a process started as /proc/self/exe is called "exe" */
    mx_stop_start();
    mx_limits_check();
    mx_engine_setup();
    if (mx_mpi_start(&argc, &argv) != MX_OK) {
        fail();
        return EXIT_FAILURE;
    }
    /* Line buffering, so that log files and mpirun get whole lines at once. It is set after MPI's start, which changes
     * stdout's buffer. */
    static char lines[BUFSIZ];
    setvbuf(stdout, lines, _IOLBF, sizeof lines);
    bool ok = run(argc, argv);
    mx_comm_end();
    /* A run that was asked to stop has succeeded even if its terminal is gone. */
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (!written && !mx_stop_requested()) {
        fprintf(stderr, "mxlua: rank %d: standard output could not be written\n", mx_rank());
        return EXIT_FAILURE;
    }
    int status = ok ? EXIT_SUCCESS : EXIT_FAILURE;
    if (mx_guardian_launcher_is_gone()) /* MPI has not ended, and its exit handlers would wait for the launcher */
        _exit(status);
    return status;
}
