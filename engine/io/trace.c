#include "io/trace.h"

#include "io/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRIPT_TRACK = 1, MAX_TRACKS = 64, BUFFER_BYTES = 1 << 20 };

typedef struct track {
    const char *name; /* interned */
    int copy;         /* 1: the first of that name */
    int64_t free_ns;  /* when its last event has ended */
} track;

typedef struct writer {
    FILE *file;
    const mx_recording *recording;
    int rank;
    const char *separator; /* before the next event */
    int64_t memory_bytes;  /* value of the counter */
    int n_tracks;
    track tracks[MAX_TRACKS];
} writer;

/* ---- JSON ---- */

/* The length of the UTF-8 sequence that begins here; 0 if it is invalid. */
static int sequence_bytes(const unsigned char *s)
{
    int n = s[0] < 0x80                   ? 1
            : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
            : (s[0] & 0xf0) == 0xe0       ? 3
            : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                          : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool too_long = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool no_character = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90);
    return too_long || no_character ? 0 : n;
}

static void put_string(FILE *file, const char *text)
{
    putc('"', file);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int n = sequence_bytes(s);
        if (n == 0)
            fputs("\\ufffd", file);
        else if (n == 1 && (*s == '"' || *s == '\\'))
            fprintf(file, "\\%c", *s);
        else if (n == 1 && *s < 0x20)
            fprintf(file, "\\u%04x", *s);
        else
            fwrite(s, 1, (size_t)n, file);
        s += n > 0 ? n : 1;
    }
    putc('"', file);
}

static void put_text_field(writer *w, const char *key, const char *text)
{
    if (!text)
        return;
    fprintf(w->file, "%s\"%s\":", w->separator, key);
    put_string(w->file, text);
    w->separator = ",";
}

static void put_number_field(writer *w, const char *key, const char *format, double value)
{
    fprintf(w->file, "%s\"%s\":", w->separator, key);
    fprintf(w->file, format, isfinite(value) ? value : 0.0);
    w->separator = ",";
}

/* ---- events ---- */

/* Whole nanoseconds since the start, so that equal ends and starts stay equal. */
static int64_t nanoseconds(const writer *w, double seconds)
{
    return (int64_t)llround(1e9 * (seconds - w->recording->start_s));
}

static void put_time(FILE *file, const char *key, int64_t ns)
{
    fprintf(file, ",\"%s\":%lld.%03lld", key, (long long)(ns / 1000), (long long)(ns % 1000));
}

static void begin_event(writer *w, const char *phase, const char *name, int tid)
{
    fprintf(w->file, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"name\":", w->separator, phase, w->rank, tid);
    put_string(w->file, name);
}

static void begin_arguments(writer *w)
{
    fputs(",\"args\":{", w->file);
    w->separator = "";
}

static void end_event(writer *w)
{
    fputs("}}", w->file);
    w->separator = ",";
}

static void put_metadata(writer *w, const char *kind, int tid, const char *name)
{
    begin_event(w, "M", kind, tid);
    begin_arguments(w);
    put_text_field(w, "name", name);
    end_event(w);
}

static void put_track(writer *w, int tid, const char *name)
{
    put_metadata(w, "thread_name", tid, name);
    begin_event(w, "M", "thread_sort_index", tid);
    begin_arguments(w);
    put_number_field(w, "sort_index", "%.0f", tid);
    end_event(w);
}

/* The first track of this name that is free at the start. When all tracks are used, the last one is shared. */
static int find_track(writer *w, const char *name, int64_t start_ns, int64_t end_ns)
{
    int copies = 0, i = 0;
    for (; i < w->n_tracks; i++) {
        if (w->tracks[i].name != name)
            continue;
        if (w->tracks[i].free_ns <= start_ns)
            break;
        copies++;
    }
    if (i == w->n_tracks && i < MAX_TRACKS) {
        char text[128];
        w->tracks[w->n_tracks++] = (track){.name = name, .copy = copies + 1};
        snprintf(text, sizeof text, copies > 0 ? "%s (%d)" : "%s", name, copies + 1);
        put_track(w, SCRIPT_TRACK + 1 + i, text);
    }
    i = i < MAX_TRACKS ? i : MAX_TRACKS - 1;
    w->tracks[i].free_ns = end_ns;
    return SCRIPT_TRACK + 1 + i;
}

static void put_operation_arguments(writer *w, const mx_event *e)
{
    double seconds = e->end_s - e->start_s;
    put_text_field(w, "inputs", e->inputs);
    put_text_field(w, "outputs", e->outputs);
    put_number_field(w, "FLOPs", "%.0f", e->flops);
    put_number_field(w, "bytes", "%.0f", e->bytes);
    put_number_field(w, "FLOP/s", "%.4g", seconds > 0 ? e->flops / seconds : 0);
}

static void put_job_arguments(writer *w, const mx_event *e)
{
    put_text_field(w, "axes", e->over);
    put_text_field(w, "dtype", e->dtype);
    put_number_field(w, "count", "%.0f", (double)e->count);
    put_number_field(w, "bytes", "%.0f", e->bytes);
    put_number_field(w, "tensors", "%.0f", e->tensors);
    put_text_field(w, "line", e->where);
    if (e->kind != MX_EVENT_JOB)
        put_text_field(w, "on", e->track);
}

static void put_memory(writer *w, const mx_event *e)
{
    if (e->memory_bytes == w->memory_bytes)
        return;
    w->memory_bytes = e->memory_bytes;
    begin_event(w, "C", "memory in use", 0);
    put_time(w->file, "ts", nanoseconds(w, e->end_s));
    begin_arguments(w);
    put_number_field(w, "bytes", "%.0f", (double)e->memory_bytes);
    end_event(w);
}

static void put_event(writer *w, const mx_event *e)
{
    const char *prefix = e->kind == MX_EVENT_COPY ? "copy: " : e->kind == MX_EVENT_WAIT ? "wait: " : "";
    int64_t start_ns = nanoseconds(w, e->start_s), end_ns = nanoseconds(w, e->end_s);
    int tid = e->kind == MX_EVENT_JOB ? find_track(w, e->track, start_ns, end_ns) : SCRIPT_TRACK;
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, e->name);
    begin_event(w, "X", name, tid);
    fprintf(w->file, ",\"cat\":\"%s\"", mx_event_kind_name(e->kind));
    put_time(w->file, "ts", start_ns);
    put_time(w->file, "dur", end_ns - start_ns);
    begin_arguments(w);
    if (e->kind == MX_EVENT_OPERATION)
        put_operation_arguments(w, e);
    else if (e->kind != MX_EVENT_SPAN)
        put_job_arguments(w, e);
    end_event(w);
    if (e->kind == MX_EVENT_OPERATION)
        put_memory(w, e);
}

/* ---- the file ---- */

/* Orders events by their start; with equal starts, an enclosing event comes first. */
static int by_start(const void *a, const void *b)
{
    const mx_event *x = *(const mx_event *const *)a, *y = *(const mx_event *const *)b;
    if (x->start_s != y->start_s)
        return x->start_s < y->start_s ? -1 : 1;
    if (x->kind != y->kind)
        return (int)x->kind - (int)y->kind;
    return (x > y) - (x < y);
}

static void put_all(writer *w, const mx_event *const *sorted)
{
    char process[64];
    fprintf(w->file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"mxlua\",\"rank\":%d,\"time\":\"%s\"},"
            "\"traceEvents\":[",
            w->rank, w->recording->simulated ? "simulated" : "measured");
    snprintf(process, sizeof process, "rank %d, %s time", w->rank, w->recording->simulated ? "simulated" : "measured");
    put_metadata(w, "process_name", 0, process);
    put_track(w, SCRIPT_TRACK, "operations");
    mx_event first = {.end_s = w->recording->start_s, .memory_bytes = w->recording->memory_bytes};
    put_memory(w, &first);
    for (int64_t i = 0; i < w->recording->n; i++)
        put_event(w, sorted[i]);
    fputs("\n]}\n", w->file);
}

static mx_status write_file(const char *path, const char *temporary, writer *w, const mx_event *const *sorted)
{
    w->file = fopen(temporary, "we");
    bool good = w->file != NULL;
    if (good) {
        setvbuf(w->file, NULL, _IOFBF, BUFFER_BYTES);
        put_all(w, sorted);
        good = !ferror(w->file);
        good = fclose(w->file) == 0 && good;
    }
    return good ? MX_OK : mx_fail(MX_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
}

mx_status mx_trace_write(const char *path, const mx_recording *recording, int rank)
{
    const mx_event **sorted = malloc(((size_t)recording->n + 1) * sizeof(*sorted));
    if (!sorted)
        return mx_fail(MX_ERR_MEMORY, "no memory to sort the %lld events of a trace", (long long)recording->n);
    for (int64_t i = 0; i < recording->n; i++)
        sorted[i] = &recording->events[i];
    qsort(sorted, (size_t)recording->n, sizeof *sorted, by_start);
    writer w = {.recording = recording, .rank = rank, .separator = "", .memory_bytes = -1};
    mx_draft draft;
    mx_status status = mx_draft_open(&draft, path);
    if (status == MX_OK) {
        status = write_file(path, draft.temporary, &w, sorted);
        if (status == MX_OK)
            status = mx_draft_commit(&draft);
        else
            mx_draft_discard(&draft);
    }
    free(sorted);
    return status;
}
