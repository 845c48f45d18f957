#include "data/json_line.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes between the quotes of a string, escapes included. */
typedef struct span {
    const unsigned char *at;
    size_t bytes;
} span;

typedef struct scanner {
    const unsigned char *start, *at, *end;
    const char *field;
    char *open; /* '{' or '[' of each open container */
    size_t depth, room;
    span key;         /* key of the next top-level value */
    bool found;       /* the field has been seen; the next two are of its last value */
    char found_kind;  /* the first byte of the value */
    span found_text;  /* the text, if it is a string */
    char keys[160];   /* the top-level keys, for a message */
    size_t keys_used; /* may exceed the room: the rest is left out */
} scanner;

static mx_status fail_at(const scanner *s, const unsigned char *at, const char *problem)
{
    long long column = 1;
    for (const unsigned char *c = s->start; c < at; c++)
        column += (*c & 0xc0) != 0x80;
    return mx_fail(MX_ERR_VALUE, "column %lld: %s", column, problem);
}

static void skip_spaces(scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool next_is(const scanner *s, char c) { return s->at < s->end && *s->at == (unsigned char)c; }

/* ---- characters ---- */

/* The length of the UTF-8 character at `at`, 0 if it is invalid. The three bytes of half a surrogate pair count as a
 * character, as in json.loads; the extracted text must not contain any. */
static int character_bytes(const unsigned char *at, const unsigned char *end)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int bytes = *at < 0x80 ? 1 : *at < 0xc0 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf8 ? 4 : 0;
    if (bytes < 2 || end - at < bytes)
        return bytes == 1;
    uint32_t code = *at & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    return code >= least[bytes] && code <= 0x10ffff ? bytes : 0;
}

static int hex_digit(unsigned char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The value of the four hexadecimal digits at `at`; -1 if there are not four. */
static int32_t hex_code(const unsigned char *at, const unsigned char *end)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = end - at > i ? hex_digit(at[i]) : -1;
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Reads a string whose opening quote has just been read. */
static mx_status take_string(scanner *s, span *out)
{
    *out = (span){.at = s->at};
    while (s->at < s->end) {
        unsigned char c = *s->at;
        if (c == '"') {
            out->bytes = (size_t)(s->at++ - out->at);
            return MX_OK;
        } else if (c < 0x20) {
            return fail_at(s, s->at, "a control character in a string: it must be escaped");
        } else if (c == '\\') {
            const unsigned char *escape = s->at++;
            if (s->at == s->end)
                break;
            if (*s->at == 'u' && hex_code(s->at + 1, s->end) < 0)
                return fail_at(s, escape, "\\u without four hexadecimal digits");
            if (*s->at != 'u' && (*s->at == 0 || !strchr("\"\\/bfnrt", *s->at)))
                return fail_at(s, escape, "an escape that JSON does not have");
            s->at += *s->at == 'u' ? 5 : 1;
        } else {
            int bytes = character_bytes(s->at, s->end);
            if (bytes == 0)
                return fail_at(s, s->at, "invalid UTF-8");
            s->at += bytes;
        }
    }
    return fail_at(s, s->end, "the line ends inside a string");
}

static char *put_code(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)((0xff00u >> (more + 1) & 0xff) | code >> 6 * more); /* as many leading ones as bytes */
    while (more-- > 0)
        *to++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return to;
}

/* Decodes the escape at *at and moves *at behind it; both halves of a surrogate pair are one character. */
static uint32_t take_escape(const unsigned char **at, const unsigned char *end)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned char name = (*at)[1];
    *at += 2;
    if (name != 'u')
        return (unsigned char)values[strchr(names, name) - names];
    uint32_t code = (uint32_t)hex_code(*at, end);
    *at += 4;
    if (code >= 0xd800 && code < 0xdc00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        uint32_t low = (uint32_t)hex_code(*at + 2, end);
        if (low >= 0xdc00 && low < 0xe000) {
            *at += 6;
            return 0x10000 + ((code & 0x3ff) << 10) + (low & 0x3ff);
        }
    }
    return code;
}

/* Writes a string with its escapes decoded, which never makes it longer. Returns its length. */
static size_t unescape(span from, char *to)
{
    char *start = to;
    const unsigned char *end = from.at + from.bytes;
    for (const unsigned char *at = from.at; at < end;) {
        const unsigned char *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape ? escape : end) - at);
        memcpy(to, at, plain);
        to += plain;
        at += plain;
        if (escape)
            to = put_code(to, take_escape(&at, end));
    }
    return (size_t)(to - start);
}

/* ---- values ---- */

static bool take_word(scanner *s, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(s->end - s->at) < bytes || memcmp(s->at, word, bytes) != 0)
        return false;
    s->at += bytes;
    return true;
}

static bool take_digits(scanner *s)
{
    const unsigned char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > first;
}

/* Reads a number. It ends before an incomplete fraction or exponent, which is then reported as an error. */
static bool take_number(scanner *s)
{
    if (next_is(s, '-'))
        s->at++;
    if (!take_word(s, "0") && !take_digits(s))
        return false;
    const unsigned char *whole = s->at;
    if (!take_word(s, ".") || !take_digits(s))
        s->at = whole;
    whole = s->at;
    if (take_word(s, "e") || take_word(s, "E")) {
        if (!take_word(s, "+"))
            take_word(s, "-");
        if (!take_digits(s))
            s->at = whole;
    }
    return true;
}

static bool take_constant(scanner *s)
{
    static const char *const words[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_word(s, words[i]))
            return true;
    return false;
}

static bool in_object(const scanner *s) { return s->open[s->depth - 1] == '{'; }

static mx_status open_container(scanner *s, unsigned char bracket)
{
    if (s->depth == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        char *open = realloc(s->open, room);
        if (!open)
            return mx_fail(MX_ERR_MEMORY, "out of memory for JSON nested %zu levels deep", s->depth);
        s->open = open;
        s->room = room;
    }
    s->open[s->depth++] = (char)bracket;
    return MX_OK;
}

static bool is_field(const scanner *s, char *scratch)
{
    size_t bytes = unescape(s->key, scratch);
    return bytes == strlen(s->field) && memcmp(scratch, s->field, bytes) == 0;
}

static void note_key(scanner *s)
{
    size_t room = sizeof s->keys;
    if (s->keys_used < room)
        s->keys_used +=
            (size_t)snprintf(s->keys + s->keys_used, room - s->keys_used, "%s%.*s", s->keys_used ? ", " : "",
                             (int)(s->key.bytes < 40 ? s->key.bytes : 40), (const char *)s->key.at);
}

static mx_status take_key(scanner *s)
{
    span key = {0};
    skip_spaces(s);
    if (!next_is(s, '"'))
        return fail_at(s, s->at, "a key in double quotes is expected");
    s->at++;
    MX_TRY(take_string(s, &key));
    skip_spaces(s);
    if (!next_is(s, ':'))
        return fail_at(s, s->at, "':' is expected after a key");
    s->at++;
    if (s->depth == 1) {
        s->key = key;
        note_key(s);
    }
    return MX_OK;
}

/* Remembers a value of the top-level object if it belongs to the field. */
static void note_value(scanner *s, const unsigned char *value, span text, char *scratch)
{
    if (s->depth != 1 || !in_object(s) || !is_field(s, scratch))
        return;
    s->found = true;
    s->found_kind = (char)*value;
    s->found_text = text;
}

/* Reads a value, or the start of a container; *opened says which. */
static mx_status take_value(scanner *s, char *scratch, bool *opened)
{
    span text = {0};
    skip_spaces(s);
    const unsigned char *value = s->at;
    *opened = next_is(s, '{') || next_is(s, '[');
    if (*opened) {
        note_value(s, value, text, scratch);
        s->at++;
        MX_TRY(open_container(s, *value));
        skip_spaces(s);
        *opened = !next_is(s, *value == '{' ? '}' : ']'); /* otherwise the container is empty */
        return *opened && *value == '{' ? take_key(s) : MX_OK;
    }
    if (next_is(s, '"')) {
        s->at++;
        MX_TRY(take_string(s, &text));
    } else if (!take_constant(s) && !take_number(s)) {
        return fail_at(s, value, value == s->end ? "the line ends where a value is expected" : "a value is expected");
    }
    note_value(s, value, text, scratch);
    return MX_OK;
}

/* Continues behind a value: closes containers up to the next value. *more says whether there is one. */
static mx_status go_on(scanner *s, bool *more)
{
    *more = false;
    while (s->depth > 0) {
        bool object = in_object(s);
        skip_spaces(s);
        if (next_is(s, object ? '}' : ']')) {
            s->at++;
            s->depth--;
        } else if (next_is(s, ',')) {
            s->at++;
            *more = true;
            return object ? take_key(s) : MX_OK;
        } else if (s->at == s->end) {
            return fail_at(s, s->at, object ? "the line ends inside an object" : "the line ends inside an array");
        } else {
            return fail_at(s, s->at, object ? "',' or '}' is expected" : "',' or ']' is expected");
        }
    }
    skip_spaces(s);
    return s->at == s->end ? MX_OK : fail_at(s, s->at, "something follows the JSON value");
}

/* Scans the line; `scratch` has room for any string of it. */
static mx_status scan(scanner *s, char *scratch)
{
    bool more = true, opened;
    while (more) {
        MX_TRY(take_value(s, scratch, &opened));
        if (!opened)
            MX_TRY(go_on(s, &more));
    }
    return MX_OK;
}

/* ---- the text ---- */

static const char *name_of(char first)
{
    return first == 'n'                   ? "null"
           : first == 't' || first == 'f' ? "a boolean"
           : first == '"'                 ? "a string"
           : first == '{'                 ? "an object"
           : first == '['                 ? "an array"
                                          : "a number";
}

static mx_status check_text(const char *field, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    for (int step; at < end; at += step) {
        step = character_bytes(at, end);
        if (step == 3 && at[0] == 0xed && at[1] >= 0xa0)
            return mx_fail(MX_ERR_VALUE, "'%s' has half of a surrogate pair, \\u%04x, which is no character", field,
                           (at[0] & 15u) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u));
    }
    return MX_OK;
}

static mx_status choose_text(const scanner *s, char first, char *scratch, size_t *bytes)
{
    if (first != '{')
        return mx_fail(MX_ERR_VALUE, "%s where an object with '%s' is expected", name_of(first), s->field);
    if (!s->found)
        return mx_fail(MX_ERR_VALUE, "no string '%s' in it (it has: %s%s)", s->field, s->keys,
                       s->keys_used >= sizeof s->keys ? "..." : "");
    if (s->found_kind != '"')
        return mx_fail(MX_ERR_VALUE, "'%s' is %s; a string is expected", s->field, name_of(s->found_kind));
    *bytes = unescape(s->found_text, scratch);
    return check_text(s->field, scratch, *bytes);
}

mx_status mx_json_line_text(const char *line, size_t bytes, const char *field, char **text, size_t *text_bytes)
{
    *text = NULL;
    *text_bytes = 0;
    const unsigned char *at = (const unsigned char *)line;
    scanner s = {.start = at, .at = at, .end = at + bytes, .field = field};
    if (take_word(&s, "\xef\xbb\xbf"))
        s.start = s.at;
    skip_spaces(&s);
    if (s.at == s.end)
        return MX_OK;
    char first = (char)*s.at, *scratch = malloc(bytes + 1);
    if (!scratch)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a line of %zu bytes", bytes);
    mx_status status = scan(&s, scratch);
    if (status == MX_OK)
        status = choose_text(&s, first, scratch, text_bytes);
    free(s.open);
    if (status != MX_OK) {
        free(scratch);
        return status;
    }
    *text = scratch;
    return MX_OK;
}
