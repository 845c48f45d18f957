/* mx.rank, mx.info and so on: ranks, the machine and the libraries, for scripts. */
#define _GNU_SOURCE
#define PCRE2_CODE_UNIT_WIDTH 8
#include "bind/bind.h"
#include "bind/program.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/memory.h"
#include "core/stop.h"
#include "core/wrap.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "kernels/gemm.h"
#include "kernels/peak.h"
#include "mesh/share.h"
#include "ops/op.h"
#include "transport/mpi.h"
#include "transport/peers.h"
#include "transport/threads.h"

#include <cblas.h>
#include <jansson.h>
#include <limits.h>
#include <pcre2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

/* ---- ranks ---- */

static int rank(lua_State *L)
{
    lua_pushinteger(L, mx_rank());
    return 1;
}

static int ranks(lua_State *L)
{
    lua_pushinteger(L, mx_ranks());
    return 1;
}

/* mx.abort(message): ends all ranks with status 1 and this message, without a traceback. */
static int abort_all(lua_State *L)
{
    fflush(stdout);
    fprintf(stderr, "mxlua: rank %d: %s\n", mx_rank(), luaL_tolstring(L, 1, NULL));
    mx_mpi_abort(EXIT_FAILURE);
}

/* Pushes a text allocated by malloc, or nil for NULL, and frees it. (If Lua is out of memory, the text leaks and the
 * run ends.) */
static void push_owned_text(lua_State *L, char *text, int64_t bytes)
{
    if (text)
        lua_pushlstring(L, text, (size_t)bytes);
    else
        lua_pushnil(L);
    free(text);
}

/* mx.share_text(text or nil [, root = 0]) -> the root's text. Collective. */
static int share_text(lua_State *L)
{
    size_t bytes = 0;
    const char *text = luaL_optlstring(L, 1, NULL, &bytes);
    lua_Integer root = luaL_optinteger(L, 2, 0);
    luaL_argcheck(L, root >= 0 && root < mx_ranks(), 2, "root is no rank");
    char *shared;
    int64_t shared_bytes;
    mxl_set_site(L);
    mxl_try(L, mx_broadcast_text(text, (int64_t)bytes, (int)root, &shared, &shared_bytes));
    push_owned_text(L, shared, shared_bytes);
    return 1;
}

/* mx.environment(prefix) -> the variables of this process whose names begin with `prefix`: name -> value */
static int environment(lua_State *L)
{
    size_t bytes;
    const char *prefix = luaL_checklstring(L, 1, &bytes);
    lua_newtable(L);
    for (char **variable = environ; *variable; variable++) {
        const char *value = strchr(*variable, '=');
        if (!value || strncmp(*variable, prefix, bytes) != 0)
            continue;
        lua_pushlstring(L, *variable, (size_t)(value - *variable));
        lua_pushstring(L, value + 1);
        lua_settable(L, -3);
    }
    return 1;
}

/* mx.host_name() -> the name of the machine that this rank runs on */
static int host_name(lua_State *L)
{
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0)
        return luaL_error(L, "the machine has no name");
    lua_pushstring(L, name);
    return 1;
}

/* Pushes rank 0's text (nil for NULL), or nil and the message of rank 0's status. Frees `mine`. Collective. */
static int push_of_root(lua_State *L, mx_status status, char *mine, int64_t mine_bytes)
{
    char *text = NULL, *message = NULL;
    int64_t text_bytes = 0, message_bytes = 0;
    const char *reason = status == MX_OK ? NULL : mx_message();
    status = mx_broadcast_text(reason, reason ? (int64_t)strlen(reason) : 0, 0, &message, &message_bytes);
    if (status == MX_OK && !message)
        status = mx_broadcast_text(mine, mine_bytes, 0, &text, &text_bytes);
    free(mine);
    mxl_try(L, status);
    push_owned_text(L, text, text_bytes);
    push_owned_text(L, message, message_bytes);
    return 2;
}

/* mx.find_file(path) -> where rank 0 finds a file of the command line (mxl_find_file); nil and a message if it is
 * missing. Collective. */
static int find_file(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mxl_set_site(L);
    char found[PATH_MAX] = "";
    mx_status status = mx_rank() == 0 ? mxl_find_file(path, found) : MX_OK;
    char *mine = strdup(found);
    return push_of_root(L, mine ? status : mx_fail(MX_ERR_MEMORY, "no memory for a path"), mine,
                        (int64_t)strlen(found));
}

/* mx.read_file(path) -> the text that rank 0 reads there, on every rank; nil and a message if it cannot. Collective. */
static int read_file(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mxl_set_site(L);
    char *mine = NULL;
    size_t bytes = 0;
    mx_status status = mx_rank() == 0 ? mx_file_read(path, 0, &mine, &bytes) : MX_OK;
    return push_of_root(L, status, mine, (int64_t)bytes);
}

/* mx.read_line(prompt) -> the next line of rank 0's standard input, nil at its end. Collective. */
static int read_line(lua_State *L)
{
    const char *prompt = luaL_optstring(L, 1, "");
    mxl_set_site(L);
    char *line = NULL, *shared;
    size_t room = 0;
    ssize_t bytes = -1;
    int64_t shared_bytes;
    if (mx_rank() == 0) {
        mxl_catch_interrupt(NULL); /* while waiting for input, Ctrl-C ends the process */
        fputs(prompt, stdout);
        fflush(stdout);
        bytes = getline(&line, &room, stdin);
        if (bytes > 0 && line[bytes - 1] == '\n')
            bytes--;
    }
    mx_status status = mx_broadcast_text(bytes >= 0 ? line : NULL, bytes, 0, &shared, &shared_bytes);
    free(line);
    mxl_try(L, status);
    mxl_catch_interrupt(L);
    push_owned_text(L, shared, shared_bytes);
    return 1;
}

/* ---- requests to stop ---- */

/* mx.catch_stop(): from now on SIGTERM, SIGINT (Ctrl-C), SIGHUP (a closed terminal, a lost launcher) and SIGUSR1 (a
 * scheduler's warning) are only recorded for mx.stop_requested. A second SIGTERM or SIGINT ends the process at once. */
static int catch_stop(lua_State *L)
{
    (void)L;
    mx_stop_catch(mx_rank() == 0);
    return 0;
}

/* mx.stop_requested() -> "SIGTERM", "SIGINT", "SIGHUP" or "SIGUSR1" if this rank has received it since mx.catch_stop
 * (of several, the first in this list); otherwise nil. */
static int stop_requested(lua_State *L)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};
    int number = mx_stop_requested();
    lua_pushnil(L);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number == names[i].number)
            lua_pushstring(L, names[i].name);
    return 1;
}

/* wrap(text [, columns]) -> the text in lines of at most so many columns, for people. Without `columns`: 80 if stdout
 * is a terminal, otherwise the text as it is, in one line. */
static int wrap(lua_State *L)
{
    lua_Integer columns = luaL_optinteger(L, 2, isatty(STDOUT_FILENO) ? MX_WRAP_COLUMNS : 0);
    if (columns <= 0) {
        lua_settop(L, 1);
        return 1;
    }
    char *wrapped = mx_wrap(luaL_checkstring(L, 1), columns < INT_MAX ? (int)columns : INT_MAX);
    push_owned_text(L, wrapped, wrapped ? (int64_t)strlen(wrapped) : 0);
    return 1;
}

/* ---- the machine ---- */

/* Processor time is that of the calling thread, so it measures nothing where others take part. */
static void check_one_thread(lua_State *L, bool processor, int64_t n)
{
    if (processor && n > 1)
        luaL_error(L,
                   "processor time is counted for one thread only, not for %d: start mxlua with --threads 1 or call "
                   "mx.threads(1), or use the clock 'wall'",
                   (int)n);
}

/* mx.clock([name]) -> "wall" or "processor": what mx.now(), profiles, traces and mx.peak count on this machine; sets it
 * first if a name is given. */
static int clock_in_use(lua_State *L)
{
    if (!lua_isnoneornil(L, 1)) {
        const char *name = luaL_checkstring(L, 1);
        bool processor = strcmp(name, "processor") == 0;
        luaL_argcheck(L, processor || strcmp(name, "wall") == 0, 1, "expected 'wall' or 'processor'");
        check_one_thread(L, processor, mx_threads());
        mx_host_clock = processor ? mx_processor_now : mx_now;
    }
    lua_pushstring(L, mx_host_clock == mx_processor_now ? "processor" : "wall");
    return 1;
}

/* mx.now() -> seconds of a monotonic clock; simulated time while a device is simulated. */
static int now(lua_State *L)
{
    lua_pushnumber(L, mx_clock());
    return 1;
}

/* mx.started() -> when the program started, in seconds of the machine's clock, which mx.now() has without a simulation
 */
static int started(lua_State *L)
{
    lua_pushnumber(L, mx_started());
    return 1;
}

/* mx.threads([n]) -> the number of threads; sets it first if n is given. */
static int threads(lua_State *L)
{
    if (!lua_isnoneornil(L, 1)) {
        lua_Integer n = luaL_checkinteger(L, 1);
        check_one_thread(L, mx_host_clock == mx_processor_now, n);
        mxl_try(L, mx_threads_use(n < 0 || n > 1 << 20 ? 0 : (int)n));
    }
    lua_pushinteger(L, mx_threads());
    return 1;
}

/* mx.isa([name]) -> the name of the instruction set in use; sets it first if a name is given. */
static int isa(lua_State *L)
{
    if (!lua_isnoneornil(L, 1))
        mxl_try(L, mx_isa_use(luaL_checkstring(L, 1)));
    lua_pushstring(L, mx_isa_name(mx_isa_current()));
    return 1;
}

typedef enum peak_kind { PEAK_FMA, PEAK_PRODUCT, PEAK_COPY } peak_kind;

static mx_status measure_peak(peak_kind kind, mx_dtype dtype, int n_threads, double seconds, double *value)
{
    if (kind == PEAK_COPY)
        return mx_peak_copy(n_threads, seconds, value);
    return kind == PEAK_PRODUCT ? mx_peak_product(dtype, n_threads, seconds, value)
                                : mx_peak_fma(mx_isa_current(), dtype, n_threads, seconds, value);
}

static void push_peak_source(lua_State *L, peak_kind kind, mx_dtype dtype, int n_threads)
{
    const char *what = kind == PEAK_COPY      ? "copy of arrays larger than the caches, bytes read and written"
                       : kind == PEAK_PRODUCT ? mx_gemm_instruction(dtype)
                                              : mx_peak_instruction(mx_isa_current(), dtype);
    lua_pushfstring(L, "measured on this machine: %s%s, %d thread%s", what,
                    kind == PEAK_PRODUCT ? " on packed operands in the caches" : "", n_threads,
                    n_threads == 1 ? "" : "s");
}

/* mx.peak{kind = "fma", "product" or "copy" [, dtype = "bf16"] [, threads] [, seconds = 0.5]}
 * -> {value, unit, source}: a peak of this machine, measured now with the instruction set in use. Not collective; other
 * ranks should measure, or be idle, at the same time. */
static int peak(lua_State *L)
{
    static const char *const fields[] = {"kind", "dtype", "threads", "seconds", NULL};
    luaL_checktype(L, 1, LUA_TTABLE);
    mxl_check_fields(L, 1, fields, "peak");
    lua_getfield(L, 1, "kind");
    lua_getfield(L, 1, "dtype");
    static const char *const kinds[] = {"fma", "product", "copy"};
    const char *name = luaL_optstring(L, 2, "");
    int kind = 0;
    while (kind <= PEAK_COPY && strcmp(name, kinds[kind]) != 0)
        kind++;
    mx_dtype dtype = mxl_check_dtype(L, 3, MX_BF16);
    int64_t n_threads = mxl_field_integer(L, 1, "threads", mx_threads());
    double seconds = mxl_field_number(L, 1, "seconds", 0.5), value = 0;
    luaL_argcheck(L, n_threads >= 1 && n_threads <= 1024, 1, "threads must be from 1 to 1024");
    luaL_argcheck(L, seconds > 0 && seconds <= 600, 1, "seconds must be above 0, and at most 600");
    luaL_argcheck(L, kind <= PEAK_COPY, 1, "kind must be 'fma', 'product' or 'copy'");
    check_one_thread(L, mx_host_clock == mx_processor_now, n_threads);
    mx_status status = measure_peak((peak_kind)kind, dtype, (int)n_threads, seconds, &value);
    mx_cpu_flush_denormals();
    mxl_try(L, status);
    lua_createtable(L, 0, 3);
    lua_pushnumber(L, value);
    lua_setfield(L, -2, "value");
    lua_pushstring(L, kind == PEAK_COPY ? "B/s" : "FLOP/s");
    lua_setfield(L, -2, "unit");
    push_peak_source(L, (peak_kind)kind, dtype, (int)n_threads);
    lua_setfield(L, -2, "source");
    return 1;
}

static const char *pcre2_version(void)
{
    static char text[64]; /* pcre2_config asks for 24 or more */
    if (!text[0] && pcre2_config(PCRE2_CONFIG_VERSION, text) < 0)
        return "unknown";
    text[strcspn(text, " ")] = 0; /* a date follows */
    return text;
}

static const char *blas_threading(void)
{
    static const char *const names[] = {"sequential", "pthread", "OpenMP"};
    int kind = openblas_get_parallel();
    return kind >= 0 && kind < 3 ? names[kind] : "unknown";
}

/* Extracts "0.3.21" from "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
static const char *blas_version(void)
{
    static char version[32];
    if (sscanf(openblas_get_config(), "OpenBLAS %31s", version) != 1)
        snprintf(version, sizeof version, "unknown");
    return version;
}

/* Whether OpenBLAS is older than the processor, and so falls back to a core type without AVX. */
static bool blas_core_is_too_old(void)
{
    return mx_isa_best() >= MX_ISA_AVX2 && strcmp(openblas_get_corename(), "Prescott") == 0;
}

void mxl_print_versions(FILE *file)
{
    const char *pinned = getenv("OPENBLAS_CORETYPE");
    fprintf(file, "mxlua      %s (gcc %s)\n", MX_VERSION, __VERSION__);
    char root[PATH_MAX];
    if (mxl_find_root(root))
        fprintf(file, "files      %s\n", root);
    fprintf(file, "Lua        %s\n", LUA_RELEASE + 4);
    fprintf(file, "OpenBLAS   %s, core %s (%s%s), %s threads\n", blas_version(), openblas_get_corename(),
            pinned ? "pinned by OPENBLAS_CORETYPE=" : "detected", pinned ? pinned : "", blas_threading());
    if (blas_core_is_too_old())
        fprintf(file,
                "           this core uses a tenth of the processor, so its products are slow;\n"
                "           set OPENBLAS_CORETYPE=%s\n",
                mx_isa_best() >= MX_ISA_AVX512 ? "SkylakeX" : "Haswell");
    fprintf(file, "MPI        %s, thread level %s, %d rank%s, %d on this machine\n", mx_mpi_library(),
            mx_mpi_thread_level(), mx_ranks(), mx_ranks() == 1 ? "" : "s", mx_node_ranks());
    if (mx_node_ranks() > 1)
        fprintf(file, "tensors    %s\n",
                mx_peers_share() ? "shared by the ranks of this machine" : "not shared: collectives stage them");
    fprintf(file, "HDF5       %s\n", mx_h5_version());
    fprintf(file, "libyaml    %s\n", yaml_get_version_string());
    fprintf(file, "jansson    %s\n", jansson_version_str());
    fprintf(file, "PCRE2      %s\n", pcre2_version());
    fprintf(file, "utf8proc   %s\n", utf8proc_version());
    fprintf(file, "zlib       %s\n", zlibVersion());
    fprintf(file, "zstd       %s\n", ZSTD_versionString());
    fprintf(file, "processor  %s\n", mx_cpu_model());
    fprintf(file, "isa        %s (best here: %s)\n", mx_isa_name(mx_isa_current()), mx_isa_name(mx_isa_best()));
    fprintf(file, "products   bf16 by %s; f32 by %s; i8 by %s\n", mx_gemm_instruction(MX_BF16),
            mx_gemm_instruction(MX_F32), mx_gemm_instruction(MX_I8));
    fprintf(file, "cores      %d; threads of each rank: %d\n", mx_node_cores(), mx_threads());
    fprintf(file, "caches     L2 %.0f KiB a core, L3 %.0f MiB\n", (double)mx_cpu_l2_bytes() / 1024,
            (double)mx_cpu_l3_bytes() / (1 << 20));
    fprintf(file, "memory     %.1f GiB\n", (double)mx_memory_bytes() / (1 << 30));
}

static void set_text(lua_State *L, const char *key, const char *text)
{
    lua_pushstring(L, text); /* nil for NULL */
    lua_setfield(L, -2, key);
}

static void set_integer(lua_State *L, const char *key, int64_t value)
{
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

/* mx.info() -> a table of what `mxlua -v` prints. blas_core_pinned is nil if OPENBLAS_CORETYPE is not set. */
static int info(lua_State *L)
{
    lua_newtable(L);
    set_text(L, "mxlua", MX_VERSION);
    set_text(L, "compiler", "gcc " __VERSION__);
    set_text(L, "lua", LUA_RELEASE + 4);
    set_text(L, "blas", blas_version());
    set_text(L, "blas_core", openblas_get_corename());
    set_text(L, "blas_core_pinned", getenv("OPENBLAS_CORETYPE"));
    set_text(L, "blas_threading", blas_threading());
    set_text(L, "mpi", mx_mpi_library());
    set_text(L, "mpi_threads", mx_mpi_thread_level());
    set_text(L, "hdf5", mx_h5_version());
    set_text(L, "yaml", yaml_get_version_string());
    set_text(L, "json", jansson_version_str());
    set_text(L, "pcre2", pcre2_version());
    set_text(L, "utf8proc", utf8proc_version());
    set_text(L, "zlib", zlibVersion());
    set_text(L, "zstd", ZSTD_versionString());
    set_text(L, "processor", mx_cpu_model());
    set_text(L, "isa", mx_isa_name(mx_isa_current()));
    set_text(L, "isa_best", mx_isa_name(mx_isa_best()));
    set_text(L, "products_bf16", mx_gemm_instruction(MX_BF16));
    set_text(L, "products_i8", mx_gemm_instruction(MX_I8));
    set_integer(L, "rank", mx_rank());
    set_integer(L, "ranks", mx_ranks());
    set_integer(L, "node_ranks", mx_node_ranks());
    set_integer(L, "node_cores", mx_node_cores());
    lua_pushboolean(L, mx_peers_share());
    lua_setfield(L, -2, "shares_tensors");
    set_integer(L, "cores", mx_node_cores());
    set_integer(L, "threads", mx_threads());
    set_integer(L, "l2_bytes", mx_cpu_l2_bytes());
    set_integer(L, "l3_bytes", mx_cpu_l3_bytes());
    set_integer(L, "memory_bytes", mx_memory_bytes());
    return 1;
}

int mxl_open_system(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"abort", abort_all},
        {"catch_stop", catch_stop},
        {"host_name", host_name},
        {"info", info},
        {"peak", peak},
        {"isa", isa},
        {"clock", clock_in_use},
        {"now", now},
        {"started", started},
        {"rank", rank},
        {"ranks", ranks},
        {"environment", environment},
        {"find_file", find_file},
        {"read_file", read_file},
        {"read_line", read_line},
        {"share_text", share_text},
        {"stop_requested", stop_requested},
        {"wrap", wrap},
        {"threads", threads},
        {NULL, NULL},
    };
    luaL_newlib(L, functions);
    set_text(L, "version", MX_VERSION);
    return 1;
}
