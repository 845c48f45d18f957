/* Recordings and traces for Lua; lua/mx/run/profiler.lua records the steps that a config selects. */
#include "io/trace.h"
#include "bind/bind.h"
#include "io/file.h"
#include "io/recorder.h"
#include "transport/mpi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *trace_path; /* NULL: no trace is written */

/* The path of this rank: rank r above 0 adds .r */
static mx_status set_path(const char *path)
{
    size_t room = strlen(path) + 16;
    char *text = malloc(room);
    if (!text)
        return mx_fail(MX_ERR_MEMORY, "no memory for a path");
    snprintf(text, room, mx_rank() > 0 ? "%s.%d" : "%s", path, mx_rank());
    mx_status status = mx_file_check_writable(text);
    if (status == MX_OK)
        trace_path = text;
    else
        free(text);
    return status;
}

/* mx.trace_start([path]): starts to record every operation and collective; mx.trace_stop writes them to `path`, and to
 * path.r on rank r above 0. Raises an error if the file cannot be written, or if a recording is running. Not
 * collective. */
static int trace_start(lua_State *L)
{
    const char *path = luaL_optstring(L, 1, NULL);
    mx_status status = mx_recorder_start();
    if (status == MX_OK) {
        free(trace_path);
        trace_path = NULL;
        status = path ? set_path(path) : MX_OK;
        if (status != MX_OK)
            mx_recorder_stop();
    }
    mxl_try(L, status);
    return 0;
}

static const double MOST_SECONDS = 4e9; /* in nanoseconds, these and their differences fit 64 bits */

/* mx.trace_span(name, start_s, end_s): names a part of the script's time (of mx.now()) in the trace, such as a step.
 * Spans must not overlap each other or operations partially. */
static int trace_span(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    double start_s = luaL_checknumber(L, 2), end_s = luaL_checknumber(L, 3);
    luaL_argcheck(L, fabs(start_s) < MOST_SECONDS, 2, "a time of mx.now() is expected");
    luaL_argcheck(L, fabs(end_s) < MOST_SECONDS, 3, "a time of mx.now() is expected");
    luaL_argcheck(L, end_s >= start_s, 3, "the end must not be before the start");
    mx_recorder_span(name, start_s, end_s);
    return 0;
}

/* mx.trace_stop(): ends the recording and writes the file, if trace_start got a path. Raises an error if it cannot be
 * written; the recording has ended then too. Does nothing without a recording. */
static int trace_stop(lua_State *L)
{
    if (!mx_recorder_is_on())
        return 0;
    mx_recording recording;
    mx_status status = mx_recorder_get(&recording);
    mx_recorder_stop();
    if (status == MX_OK && trace_path)
        status = mx_trace_write(trace_path, &recording, mx_rank());
    free(trace_path);
    trace_path = NULL;
    mxl_try(L, status);
    return 0;
}

static void set_text(lua_State *L, const char *key, const char *text)
{
    lua_pushstring(L, text);
    lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void push_event(lua_State *L, const mx_event *e, double from_s)
{
    lua_createtable(L, 0, 12);
    set_text(L, "kind", mx_event_kind_name(e->kind));
    set_text(L, "name", e->name);
    set_number(L, "start_s", e->start_s - from_s);
    set_number(L, "end_s", e->end_s - from_s);
    if (e->kind == MX_EVENT_SPAN)
        return;
    set_number(L, "bytes", e->bytes);
    if (e->kind == MX_EVENT_OPERATION) {
        set_text(L, "work", e->collective ? "collective" : mx_work_name(e->work));
        set_text(L, "inputs", e->inputs);
        set_text(L, "outputs", e->outputs);
        set_number(L, "flops", e->flops);
        set_number(L, "memory_bytes", (double)e->memory_bytes);
        return;
    }
    set_text(L, "track", e->track);
    set_text(L, "over", e->over);
    set_text(L, "dtype", e->dtype);
    set_text(L, "where", e->where);
    set_number(L, "count", (double)e->count);
    set_number(L, "tensors", e->tensors);
}

/* mx.trace_events() -> list of the events since the last start, in the order of their ends (io/recorder.h explains the
 * fields), and the seconds that it covers. Times are seconds from its start. Each event has kind
 * ("span", "operation", "copy", "wait" or "job"), name, start_s and end_s; all but spans bytes; operations also work
 * ("bytes", "product", "attention" or "collective"), inputs, outputs, flops and memory_bytes; copies, waits and jobs
 * track, over, dtype, where, count and tensors. */
static int trace_events(lua_State *L)
{
    mx_recording recording;
    mxl_try(L, mx_recorder_get(&recording));
    lua_createtable(L, (int)recording.n, 0);
    for (int64_t i = 0; i < recording.n; i++) {
        push_event(L, &recording.events[i], recording.start_s);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushnumber(L, recording.end_s - recording.start_s);
    return 2;
}

int mxl_open_trace(lua_State *L)
{
    static const luaL_Reg functions[] = {{"trace_start", trace_start},
                                         {"trace_span", trace_span},
                                         {"trace_stop", trace_stop},
                                         {"trace_events", trace_events},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
