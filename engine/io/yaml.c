#include "io/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    yaml_parser_t parser;
    const char *name;
    const char *text; /* to find the line of a byte that the parser could not decode */
    size_t bytes;
} reader;

static mx_status fail_at(const reader *r, yaml_mark_t mark, const char *problem)
{
    mx_fail(MX_ERR_VALUE, "%s:%zu:%zu: %s", r->name, mark.line + 1, mark.column + 1, problem);
    return MX_ERR_VALUE;
}

/* Reports a byte that is not valid text: libyaml gives only its offset. */
static mx_status fail_decoding(const reader *r)
{
    size_t line = 1, column = 1, end = r->parser.problem_offset < r->bytes ? r->parser.problem_offset : r->bytes;
    for (size_t i = 0; i < end; i++) {
        column = r->text[i] == '\n' ? 1 : column + 1;
        line += r->text[i] == '\n';
    }
    return mx_fail(MX_ERR_VALUE, "%s:%zu:%zu: %s: expected a text in UTF-8", r->name, line, column, r->parser.problem);
}

/* The first byte of character `index` of a UTF-8 text; 0 behind its end. */
static char character(const reader *r, size_t index)
{
    for (size_t i = 0; i < r->bytes; i++)
        if (((unsigned char)r->text[i] & 0xc0) != 0x80 && index-- == 0)
            return r->text[i];
    return 0;
}

/* Advice on a problem, if libyaml's message gives none. */
static const char *advice_on(const reader *r, const char *problem)
{
    const yaml_parser_t *p = &r->parser;
    bool at_tab = character(r, p->problem_mark.index) == '\t';
    if (strstr(problem, "tab character") || (at_tab && strstr(problem, "cannot start any token")))
        return ": indent with spaces, not with a tab";
    if (strstr(problem, "cannot start any token"))
        return ": quote a value that begins with it";
    if (strstr(problem, "mapping values are not allowed") || strstr(problem, "could not find expected ':'"))
        return ": expected lines of the form 'key: value', indented alike; quote a value with ': ' in it";
    if (strstr(problem, "expected ',' or"))
        return ": close the bracket";
    if (strstr(problem, "unexpected end of stream"))
        return ": close the quotation mark";
    return "";
}

static mx_status fail_parsing(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return mx_fail(MX_ERR_MEMORY, "%s: out of memory while reading YAML", r->name);
    if (p->error == YAML_READER_ERROR)
        return fail_decoding(r);
    const char *problem = p->problem ? p->problem : "not valid YAML", *advice = advice_on(r, problem);
    size_t line = p->problem_mark.line + 1, column = p->problem_mark.column + 1;
    if (!p->context)
        return mx_fail(MX_ERR_VALUE, "%s:%zu:%zu: %s%s", r->name, line, column, problem, advice);
    return mx_fail(MX_ERR_VALUE, "%s:%zu:%zu: %s (%s that starts in line %zu)%s", r->name, line, column, problem,
                   p->context, p->context_mark.line + 1, advice);
}

static mx_status next_event(reader *r, yaml_event_t *event)
{
    return yaml_parser_parse(&r->parser, event) ? MX_OK : fail_parsing(r);
}

static bool is_one_of(const char *text, const char *const *choices)
{
    for (; *choices; choices++)
        if (strcmp(text, *choices) == 0)
            return true;
    return false;
}

/* Whether `text` is [-+]? digits, or 0o or 0x and digits of that base; sets *base and *digits for the conversion. */
static bool looks_integer(const char *text, int *base, const char **digits)
{
    const char *p = text + (*text == '-' || *text == '+');
    *base = text[0] == '0' && text[1] == 'x' ? 16 : text[0] == '0' && text[1] == 'o' ? 8 : 10;
    *digits = *base == 10 ? text : text + 2;
    p = *base == 10 ? p : *digits;
    if (!*p)
        return false;
    for (; *p; p++)
        if (*base == 16 ? !isxdigit((unsigned char)*p) : *p < '0' || *p > (*base == 8 ? '7' : '9'))
            return false;
    return true;
}

/* [-+]? ( .digits | digits [. digits?] ) [ (e|E) [-+]? digits ] */
static bool looks_float(const char *p)
{
    p += *p == '-' || *p == '+';
    const char *start = p;
    size_t whole = strspn(p, "0123456789");
    p += whole;
    if (*p == '.') {
        size_t fraction = strspn(++p, "0123456789");
        p += fraction;
        whole += fraction;
    }
    if (whole == 0 || p == start)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        size_t digits = strspn(p, "0123456789");
        if (digits == 0)
            return false;
        p += digits;
    }
    return *p == 0;
}

static bool special_float(const char *text, double *number)
{
    static const char *const infinite[] = {".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", NULL};
    static const char *const negative[] = {"-.inf", "-.Inf", "-.INF", NULL};
    static const char *const nans[] = {".nan", ".NaN", ".NAN", NULL};
    if (is_one_of(text, infinite))
        *number = INFINITY;
    else if (is_one_of(text, negative))
        *number = -INFINITY;
    else if (is_one_of(text, nans))
        *number = NAN;
    else
        return false;
    return true;
}

enum { LONGEST_NUMBER = 64 };

/* The decimal number 1_000 without its underscores, in `buffer`; `text` itself if an underscore is not between two
 * digits, or the text is no such number. */
static const char *without_underscores(const char *text, char buffer[LONGEST_NUMBER])
{
    size_t n = 0;
    for (const char *p = text; *p; p++) {
        bool separates = *p == '_' && p > text && isdigit((unsigned char)p[-1]) && isdigit((unsigned char)p[1]);
        if ((*p == '_' && !separates) || !strchr("0123456789_+-.eE", *p) || n + 1 == LONGEST_NUMBER)
            return text;
        if (!separates)
            buffer[n++] = *p;
    }
    buffer[n] = 0;
    return buffer;
}

static mx_status set_number(const reader *r, yaml_mark_t mark, const char *text, mx_value *out, bool *done)
{
    int base;
    const char *digits;
    char buffer[LONGEST_NUMBER];
    if (strchr(text, '_'))
        text = without_underscores(text, buffer);
    *done = true;
    errno = 0;
    if (looks_integer(text, &base, &digits)) {
        out->integer = strtoll(digits, NULL, base);
        if (errno == ERANGE)
            return fail_at(r, mark, "an integer that does not fit 64 bits (quote it if it is a string)");
        out->kind = MX_INT;
    } else if (looks_float(text)) {
        out->number = strtod(text, NULL);
        if (isinf(out->number))
            return fail_at(r, mark, "a number too large for a 64-bit float");
        out->kind = MX_FLOAT;
    } else if (special_float(text, &out->number)) {
        out->kind = MX_FLOAT;
    } else {
        *done = false;
    }
    return MX_OK;
}

static mx_status set_scalar(const reader *r, const yaml_event_t *event, mx_value *out)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};
    const char *text = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || strlen(text) != length)
        return mx_value_set_string(out, text, length);
    if (is_one_of(text, nulls))
        return MX_OK;
    bool is_true = is_one_of(text, trues);
    if (is_true || is_one_of(text, falses)) {
        out->kind = MX_BOOL;
        out->boolean = is_true;
        return MX_OK;
    }
    bool done;
    MX_TRY(set_number(r, event->start_mark, text, out, &done));
    return done ? MX_OK : mx_value_set_string(out, text, length);
}

static mx_status check_plain_node(const reader *r, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor || event->type == YAML_ALIAS_EVENT)
        return fail_at(r, event->start_mark, "anchors (&) and aliases (*) are not supported: write the value out");
    return tag ? fail_at(r, event->start_mark, "explicit tags (!) are not supported: quote a string instead") : MX_OK;
}

static mx_status read_node(reader *r, const yaml_event_t *first, int depth, mx_value *out);

static mx_status read_array(reader *r, int depth, mx_value *out)
{
    for (;;) {
        yaml_event_t event;
        MX_TRY(next_event(r, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return MX_OK;
        }
        mx_entry *entry = NULL;
        mx_status status = mx_value_append(out, NULL, &entry);
        if (status == MX_OK) {
            entry->line = (int)event.start_mark.line + 1;
            entry->column = (int)event.start_mark.column + 1;
            status = read_node(r, &event, depth, &entry->value);
        }
        yaml_event_delete(&event);
        MX_TRY(status);
    }
}

static mx_status read_key(reader *r, const yaml_event_t *event, mx_value *map, mx_entry **out)
{
    MX_TRY(check_plain_node(r, event));
    if (event->type != YAML_SCALAR_EVENT)
        return fail_at(r, event->start_mark, "a key must be a single word or string");
    const char *key = (const char *)event->data.scalar.value;
    if (strlen(key) != event->data.scalar.length)
        return fail_at(r, event->start_mark, "a key must not contain a zero byte");
    if (strcmp(key, "<<") == 0 && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(r, event->start_mark, "merge keys (<<) are not supported: write the keys out");
    MX_TRY(mx_value_append(map, key, out));
    (*out)->line = (int)event->start_mark.line + 1;
    (*out)->column = (int)event->start_mark.column + 1;
    return MX_OK;
}

static mx_status check_duplicates(const reader *r, const mx_value *map)
{
    const mx_entry **sorted;
    MX_TRY(mx_value_sorted(map, &sorted));
    mx_status status = MX_OK;
    for (size_t i = 1; i < map->count && status == MX_OK; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            status = mx_fail(MX_ERR_VALUE, "%s:%d:%d: key '%.200s' is given twice: first in line %d; keep one", r->name,
                             sorted[i]->line, sorted[i]->column, sorted[i]->key, sorted[i - 1]->line);
    free(sorted);
    return status;
}

static mx_status read_map(reader *r, int depth, mx_value *out)
{
    for (;;) {
        yaml_event_t event;
        MX_TRY(next_event(r, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return check_duplicates(r, out);
        }
        mx_entry *entry = NULL;
        mx_status status = read_key(r, &event, out, &entry);
        yaml_event_delete(&event);
        MX_TRY(status);
        MX_TRY(next_event(r, &event));
        status = read_node(r, &event, depth, &entry->value);
        yaml_event_delete(&event);
        MX_TRY(status);
    }
}

/* Reads the node that the event `first` begins, inside `depth` open containers. */
static mx_status read_node(reader *r, const yaml_event_t *first, int depth, mx_value *out)
{
    MX_TRY(check_plain_node(r, first));
    out->line = (int)first->start_mark.line + 1;
    out->column = (int)first->start_mark.column + 1;
    if (first->type == YAML_SCALAR_EVENT)
        return set_scalar(r, first, out);
    if (depth == MX_VALUE_DEPTH)
        return fail_at(r, first->start_mark, "nested deeper than 64 levels");
    out->kind = first->type == YAML_SEQUENCE_START_EVENT ? MX_ARRAY : MX_MAP;
    return out->kind == MX_ARRAY ? read_array(r, depth + 1, out) : read_map(r, depth + 1, out);
}

/* Reads events to the end of the stream; at most one document is allowed. */
static mx_status read_stream(reader *r, mx_value *out)
{
    int documents = 0;
    for (;;) {
        yaml_event_t event;
        MX_TRY(next_event(r, &event));
        yaml_event_type_t type = event.type;
        mx_status status = MX_OK;
        if (type == YAML_DOCUMENT_START_EVENT && ++documents > 1)
            status = fail_at(r, event.start_mark, "a second document: one file holds one");
        else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                 type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT)
            status = read_node(r, &event, 0, out);
        yaml_event_delete(&event);
        MX_TRY(status);
        if (type == YAML_STREAM_END_EVENT)
            return MX_OK;
    }
}

mx_status mx_yaml_parse(const char *text, size_t bytes, const char *name, mx_value *out)
{
    *out = (mx_value){.kind = MX_NULL};
    if (bytes > MX_YAML_BYTES)
        return mx_fail(MX_ERR_VALUE, "%s:1:1: %zu bytes: a configuration has at most %d", name, bytes, MX_YAML_BYTES);
    reader r = {.name = name, .text = text, .bytes = bytes};
    if (!yaml_parser_initialize(&r.parser))
        return mx_fail(MX_ERR_MEMORY, "%s: out of memory while reading YAML", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    mx_status status = read_stream(&r, out);
    yaml_parser_delete(&r.parser);
    if (status != MX_OK)
        mx_value_free(out);
    return status;
}
