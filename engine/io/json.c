#include "io/json.h"

#include "io/format.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static mx_status from_jansson(const json_t *json, const char *name, int depth, mx_value *out);

static mx_status array_from_jansson(const json_t *json, const char *name, int depth, mx_value *out)
{
    out->kind = MX_ARRAY;
    for (size_t i = 0; i < json_array_size(json); i++) {
        mx_entry *entry;
        MX_TRY(mx_value_append(out, NULL, &entry));
        MX_TRY(from_jansson(json_array_get(json, i), name, depth, &entry->value));
    }
    return MX_OK;
}

static mx_status map_from_jansson(const json_t *json, const char *name, int depth, mx_value *out)
{
    out->kind = MX_MAP;
    json_t *object = (json_t *)json; /* jansson's iterators do not take const, but change nothing */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        mx_entry *entry;
        MX_TRY(mx_value_append(out, json_object_iter_key(at), &entry));
        MX_TRY(from_jansson(json_object_iter_value(at), name, depth, &entry->value));
    }
    return MX_OK;
}

static mx_status from_jansson(const json_t *json, const char *name, int depth, mx_value *out)
{
    switch (json_typeof(json)) {
    case JSON_NULL:
        return MX_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        out->kind = MX_BOOL;
        out->boolean = json_is_true(json);
        return MX_OK;
    case JSON_INTEGER:
        out->kind = MX_INT;
        out->integer = json_integer_value(json);
        return MX_OK;
    case JSON_REAL:
        out->kind = MX_FLOAT;
        out->number = json_real_value(json);
        return MX_OK;
    case JSON_STRING:
        return mx_value_set_string(out, json_string_value(json), json_string_length(json));
    default:
        break;
    }
    if (depth == MX_VALUE_DEPTH)
        return mx_fail(MX_ERR_VALUE, "%s: JSON nested deeper than %d levels", name, MX_VALUE_DEPTH);
    return json_is_array(json) ? array_from_jansson(json, name, depth + 1, out)
                               : map_from_jansson(json, name, depth + 1, out);
}

mx_status mx_json_parse(const char *text, size_t bytes, const char *name, mx_value *out)
{
    *out = (mx_value){.kind = MX_NULL};
    if (bytes > 0 && text[0] == 'v') /* a pointer file of git-lfs begins with it, JSON never does */
        MX_TRY(mx_format_refuse_pointer(name, text, bytes));
    json_error_t error;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!json)
        return mx_fail(MX_ERR_VALUE, "%s:%d:%d: %s", name, error.line > 0 ? error.line : 1,
                       error.column > 0 ? error.column : 1, error.text);
    mx_status status = from_jansson(json, name, 0, out);
    json_decref(json);
    if (status != MX_OK)
        mx_value_free(out);
    return status;
}

/* ---- writing ---- */

typedef struct writer {
    char *text;
    size_t used, room;
    bool failed; /* out of memory: reported once, at the end */
    int indent;
    const mx_entry *path[MX_VALUE_DEPTH]; /* the entries that lead to the value being written, for messages */
    size_t index[MX_VALUE_DEPTH];
    int depth;
} writer;

static void put(writer *w, const char *text, size_t bytes)
{
    if (w->used + bytes + 1 > w->room) {
        size_t room = 2 * (w->used + bytes + 1);
        char *grown = w->failed ? NULL : realloc(w->text, room);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->text = grown;
        w->room = room;
    }
    memcpy(w->text + w->used, text, bytes);
    w->used += bytes;
    w->text[w->used] = 0;
}

static int put_from_jansson(const char *text, size_t bytes, void *w)
{
    put(w, text, bytes);
    return 0;
}

/* Returns MX_ERR_VALUE with the path of the value being written: "loss.history[3]: ...". */
static mx_status fail_here(const writer *w, const char *problem)
{
    char path[512] = "";
    size_t used = 0;
    for (int d = 0; d < w->depth && used < sizeof path; d++) {
        const char *key = w->path[d]->key;
        used += (size_t)(key ? snprintf(path + used, sizeof path - used, "%s%.100s", used ? "." : "", key)
                             : snprintf(path + used, sizeof path - used, "[%zu]", w->index[d] + 1));
    }
    return mx_fail(MX_ERR_VALUE, "JSON: %s%s%s", path, used ? ": " : "", problem);
}

static mx_status put_string(writer *w, const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    if (!string)
        return fail_here(w, "a string that is not valid UTF-8");
    if (json_dump_callback(string, put_from_jansson, w, JSON_ENCODE_ANY) != 0)
        w->failed = true;
    json_decref(string);
    return MX_OK;
}

static mx_status put_float(writer *w, double x)
{
    if (!isfinite(x))
        return fail_here(w, isnan(x) ? "nan has no form in JSON" : "infinity has no form in JSON");
    char text[40];
    int used = 0;
    for (int digits = 15; digits <= 17; digits++) {
        used = snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    put(w, text, (size_t)used);
    if (!strpbrk(text, ".e"))
        put(w, ".0", 2);
    return MX_OK;
}

static void new_line(writer *w)
{
    if (w->indent == 0)
        return;
    put(w, "\n", 1);
    for (int i = 0; i < w->depth * w->indent; i++)
        put(w, " ", 1);
}

static mx_status put_value(writer *w, const mx_value *value);

static mx_status put_entry(writer *w, const mx_entry *entry, size_t index)
{
    w->path[w->depth] = entry;
    w->index[w->depth++] = index;
    if (index)
        put(w, ",", 1);
    new_line(w);
    if (entry->key) {
        MX_TRY(put_string(w, entry->key, strlen(entry->key)));
        put(w, w->indent ? ": " : ":", w->indent ? 2 : 1);
    }
    MX_TRY(put_value(w, &entry->value));
    w->depth--;
    return MX_OK;
}

static mx_status put_container(writer *w, const mx_value *value)
{
    if (w->depth == MX_VALUE_DEPTH)
        return fail_here(w, "nested deeper than 64 levels, or inside itself");
    bool array = value->kind == MX_ARRAY;
    put(w, array ? "[" : "{", 1);
    const mx_entry **sorted = NULL;
    if (!array)
        MX_TRY(mx_value_sorted(value, &sorted));
    mx_status status = MX_OK;
    for (size_t i = 0; i < value->count && status == MX_OK; i++)
        status = put_entry(w, array ? &value->entries[i] : sorted[i], i);
    free(sorted);
    if (status == MX_OK && value->count)
        new_line(w);
    put(w, array ? "]" : "}", 1);
    return status;
}

static mx_status put_value(writer *w, const mx_value *value)
{
    char text[32];
    switch (value->kind) {
    case MX_NULL:
        put(w, "null", 4);
        return MX_OK;
    case MX_BOOL:
        put(w, value->boolean ? "true" : "false", value->boolean ? 4 : 5);
        return MX_OK;
    case MX_INT:
        put(w, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value->integer));
        return MX_OK;
    case MX_FLOAT:
        return put_float(w, value->number);
    case MX_STRING:
        return put_string(w, value->text, value->length);
    default:
        return put_container(w, value);
    }
}

mx_status mx_json_encode(const mx_value *value, int indent, char **text, size_t *bytes)
{
    writer w = {.indent = indent};
    mx_status status = put_value(&w, value);
    if (status == MX_OK && w.failed)
        status = mx_fail(MX_ERR_MEMORY, "out of memory for %zu bytes of JSON", w.used);
    if (status != MX_OK) {
        free(w.text);
        return status;
    }
    *text = w.text;
    *bytes = w.used;
    return MX_OK;
}
