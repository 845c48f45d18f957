/* Runs patterns with PCRE2. The reference uses Oniguruma with Ruby's syntax; constructs that PCRE2 would read
 * differently are translated or refused. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "tokenizer/internal.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_BYTES = 8192, STACK_BYTES = 8 << 20 };
enum { MATCH_STEPS = 1000000, STEPS_PER_BYTE = 4 }; /* limits of one search */

enum { BLOCK_CODES = 64, BLOCKS = 0x110000 / BLOCK_CODES };

typedef struct program {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool jit;
} program;

/* PCRE2 is fast with its own sets of characters, but slower with additional ranges. So a pattern is compiled twice: for
 * texts without characters that the reference and PCRE2 classify differently, and for any text. */
struct mx_pattern {
    program plain, whole;        /* plain.code is NULL if both are the same */
    uint64_t newer[BLOCKS / 64]; /* a bit for each block of codes that has such a character */
};

/* ---- sets of characters ---- */

/* Not PCRE2's own \s, which contains U+180E; Unicode has removed that. */
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define HEX "0-9A-Fa-f"

enum { NAME_BYTES = 48 };

typedef struct set {
    size_t bytes;               /* of the content */
    const char *content;        /* the inside of a PCRE2 bracket expression */
    bool opposite;              /* the set is the complement */
    char room[NAME_BYTES + 16]; /* memory for a content that is not a constant */
} set;

static mx_status refuse(const char *what) { return mx_fail(MX_ERR_VALUE, "a pattern with %s is not supported", what); }

static mx_status put_text(mx_buffer *to, const char *text) { return mx_buffer_put(to, text, strlen(text)); }

static const char *content_of(const char *name)
{
    for (const mx_property *p = mx_properties; p->name; p++)
        if (strcmp(p->name, name) == 0)
            return p->content[0] == '=' ? content_of(p->content + 1) : p->content;
    return NULL;
}

/* The content for a name that is in the table. */
static const char *known_content(const char *name)
{
    const char *content = content_of(name);
    return content ? content : "";
}

static bool compiles(const char *pattern)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Finds a property by its name. As in Unicode, spaces, hyphens, underscores and case do not matter. PCRE2's own sets
 * would differ: they follow its version of Unicode, and its \p{Han} includes characters that are used together with
 * Han. */
static mx_status find_property(const char *text, size_t bytes, set *out)
{
    static const struct {
        const char *name, *opposite;
    } rest[] = {{"cn", "assigned"}, {"unassigned", "assigned"}, {"c", "any but other"}, {"other", "any but other"}};
    char name[NAME_BYTES];
    size_t length = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == ' ' || c == '-' || c == '_')
            continue;
        if (!isalnum((unsigned char)c) || length + 1 == sizeof name)
            return mx_fail(MX_ERR_VALUE, "a pattern with \\p{%.*s} is not supported", (int)bytes, text);
        name[length++] = (char)tolower((unsigned char)c);
    }
    name[length] = 0;
    out->content = content_of(name);
    for (size_t i = 0; i < sizeof rest / sizeof *rest && !out->content; i++)
        if (strcmp(name, rest[i].name) == 0) {
            out->content = content_of(rest[i].opposite);
            out->opposite = !out->opposite;
        }
    if (out->content)
        return MX_OK;
    (void)snprintf(out->room, sizeof out->room, "\\p{sc:%s}", name);
    if (!compiles(out->room))
        (void)snprintf(out->room, sizeof out->room, "\\p{%s}", name);
    out->content = out->room;
    return compiles(out->room) ? MX_OK : mx_fail(MX_ERR_VALUE, "a pattern with \\p{%s} is not supported", name);
}

/* Reads \p{L}, \p{^L}, \P{L} or \pL; `text` starts behind the p. */
static mx_status read_property(const char *text, size_t bytes, set *out, size_t *used)
{
    if (bytes > 0 && text[0] != '{') {
        *used = 1;
        return find_property(text, 1, out);
    }
    const char *end = memchr(text, '}', bytes);
    if (!end)
        return refuse("\\p that no name in braces follows");
    *used = (size_t)(end - text) + 1;
    size_t skip = *used > 2 && text[1] == '^' ? 2 : 1;
    if (skip == 2)
        out->opposite = !out->opposite;
    return find_property(text + skip, *used - skip - 1, out);
}

/* The target of a translation. */
typedef struct target {
    mx_buffer text;
    bool whole;          /* use sets with the ranges that PCRE2 does not know */
    mx_pattern *pattern; /* its field `newer` gets these ranges; NULL: not needed */
} target;

/* Marks the blocks of the ranges "\\x{A}-\\x{B}" of a content in p->newer. */
static void note_ranges(mx_pattern *p, const char *text)
{
    while (*text) {
        unsigned long first = strtoul(text + 3, (char **)&text, 16), last = first;
        text++;
        if (*text == '-') {
            last = strtoul(text + 4, (char **)&text, 16);
            text++;
        }
        for (unsigned long block = first / BLOCK_CODES; block <= last / BLOCK_CODES; block++)
            p->newer[block / 64] |= (uint64_t)1 << block % 64;
    }
}

/* Sets the length of the content to use. A content is a set that PCRE2 knows, followed by ranges; or only ranges. */
static void measure(const target *to, set *s)
{
    const char *content = s->content;
    bool has_property = content[0] == '\\' && (content[1] == 'p' || content[1] == 'P');
    const char *ranges = has_property ? strstr(content, "\\x{") : NULL;
    s->bytes = ranges && !to->whole ? (size_t)(ranges - content) : strlen(content);
    if (ranges && to->pattern)
        note_ranges(to->pattern, ranges);
}

/* Finds the set that an escape stands for. `text` starts behind the backslash; *used is the length read, 0: not a set.
 */
static mx_status find_set(const char *text, size_t bytes, bool in_class, set *out, size_t *used)
{
    *out = (set){.opposite = bytes > 0 && isupper((unsigned char)text[0])};
    *used = 1;
    switch (bytes > 0 ? tolower((unsigned char)text[0]) : 0) {
    case 's':
        out->content = SPACES;
        return MX_OK;
    case 'h':
        out->content = HEX;
        return MX_OK;
    case 'd':
        out->content = known_content("nd");
        return MX_OK;
    case 'w':
        out->content = known_content(in_class ? "[\\w]" : "\\w"); /* these differ in Oniguruma */
        return MX_OK;
    case 'p': {
        mx_status status = read_property(text + 1, bytes - 1, out, used);
        *used += 1;
        return status;
    }
    default:
        *used = 0;
        return MX_OK;
    }
}

static mx_status read_set(const target *to, const char *text, size_t bytes, bool in_class, set *out, size_t *used)
{
    MX_TRY(find_set(text, bytes, in_class, out, used));
    if (*used > 0)
        measure(to, out);
    return MX_OK;
}

/* ---- from Oniguruma's syntax to PCRE2's ---- */

/* Translates an escape that is not a set. `text` starts behind the backslash; *used is the length read. */
static mx_status put_escape(mx_buffer *to, const char *text, size_t bytes, bool in_class, size_t *used)
{
    *used = 1;
    if (bytes == 0)
        return refuse("a backslash at its end");
    char c = text[0];
    if (c == 'v')
        return put_text(to, "\\x0b");
    if (c == 'u') {
        if (bytes < 5 || strspn(text + 1, "0123456789abcdefABCDEF") < 4)
            return refuse("\\u that is not followed by four hexadecimal digits");
        *used = 5;
        MX_TRY(put_text(to, "\\x{"));
        MX_TRY(mx_buffer_put(to, text + 1, 4));
        return put_text(to, "}");
    }
    if (isalnum((unsigned char)c) && !strchr(in_class ? "nrtfeaxb0" : "nrtfeaxAzZR0", c)) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = c;
        return refuse(what);
    }
    if (bytes > 1 && c == 'x' && text[1] == '{') {
        const char *end = memchr(text, '}', bytes);
        *used = end ? (size_t)(end - text) + 1 : bytes;
    }
    MX_TRY(mx_buffer_put(to, "\\", 1));
    return mx_buffer_put(to, text, *used);
}

static mx_status put_brackets(mx_buffer *to, bool opposite, const char *content, size_t bytes)
{
    MX_TRY(put_text(to, opposite ? "[^" : content[0] == '^' ? "[\\" : "["));
    MX_TRY(mx_buffer_put(to, content, bytes));
    return put_text(to, "]");
}

/* The content of a bracket expression. PCRE2 has no complement of a set inside brackets. Such sets become alternatives
 * to the brackets, or, for brackets with ^, conditions before them. */
typedef struct class
{
    bool opposite, hyphen; /* hyphen: the last character may begin a range */
    mx_buffer plain;       /* characters, ranges, sets */
    mx_buffer others;      /* contents of complements, each followed by a zero byte */
} class;

static mx_status add_set(class *c, const set *s)
{
    if (s->opposite) {
        MX_TRY(mx_buffer_put(&c->others, s->content, s->bytes));
        return mx_buffer_put(&c->others, "", 1);
    }
    if (c->hyphen) { /* a set cannot end a range */
        c->plain.used--;
        MX_TRY(put_text(&c->plain, "\\-"));
    }
    return mx_buffer_put(&c->plain, s->content, s->bytes);
}

/* Reads the inside of brackets. `text` starts behind the opening bracket; *used is the length read, with the closing
 * one.
 */
static mx_status read_class(const target *to, const char *text, size_t bytes, class *c, size_t *used)
{
    size_t i = bytes > 0 && text[0] == '^', first = i;
    bool after_set = false;
    c->opposite = i == 1;
    while (i < bytes && (text[i] != ']' || i == first)) {
        const char *rest = text + i + 1;
        size_t left = bytes - i - 1, length = 0;
        set s;
        if (text[i] == '[' || (text[i] == '&' && left > 0 && *rest == '&'))
            return refuse("brackets inside brackets, or && there");
        if (text[i] == '\\')
            MX_TRY(read_set(to, rest, left, true, &s, &length));
        bool is_set = length > 0, hyphen = text[i] == '-';
        if (is_set)
            MX_TRY(add_set(c, &s));
        else if (text[i] == '\\')
            MX_TRY(put_escape(&c->plain, rest, left, true, &length));
        else
            MX_TRY(mx_buffer_put(&c->plain, hyphen && after_set ? "\\-" : text + i, hyphen && after_set ? 2 : 1));
        c->hyphen = hyphen && !after_set;
        after_set = is_set;
        i += 1 + length;
    }
    if (i >= bytes)
        return refuse("brackets that are not closed");
    *used = i + 1;
    return mx_buffer_put(&c->plain, "", 1);
}

static mx_status put_class(mx_buffer *to, const class *c)
{
    const char *plain = c->plain.data;
    if (c->others.used == 0)
        return put_brackets(to, c->opposite, plain, strlen(plain));
    const char *end = c->others.data + c->others.used;
    MX_TRY(put_text(to, "(?:"));
    if (plain[0]) {
        MX_TRY(put_text(to, c->opposite ? "(?!" : ""));
        MX_TRY(put_brackets(to, false, plain, strlen(plain)));
        MX_TRY(put_text(to, c->opposite ? ")" : "|"));
    }
    for (const char *other = c->others.data; other < end;) {
        const char *next = other + strlen(other) + 1;
        bool condition = c->opposite && next < end;
        MX_TRY(put_text(to, condition ? "(?=" : ""));
        MX_TRY(put_brackets(to, !c->opposite, other, strlen(other)));
        MX_TRY(put_text(to, condition ? ")" : next < end ? "|" : ""));
        other = next;
    }
    return put_text(to, ")");
}

static mx_status translate_class(target *to, const char *text, size_t bytes, size_t *used)
{
    class c = {0};
    mx_status status = read_class(to, text, bytes, &c, used);
    if (status == MX_OK)
        status = put_class(&to->text, &c);
    mx_buffer_free(&c.plain);
    mx_buffer_free(&c.others);
    return status;
}

static mx_status check_group(const char *text, size_t bytes) /* `text` starts behind the opening parenthesis */
{
    if (bytes > 0 && text[0] == '*')
        return refuse("(*");
    if (bytes > 1 && text[0] == '?' && !strchr(":=!><i-", text[1]))
        return refuse("a group that is none of (?: (?= (?! (?<= (?<! (?> (?i:");
    return MX_OK;
}

static mx_status translate_escape(target *to, const char *text, size_t bytes, size_t *used)
{
    set s;
    MX_TRY(read_set(to, text, bytes, false, &s, used));
    return *used > 0 ? put_brackets(&to->text, s.opposite, s.content, s.bytes)
                     : put_escape(&to->text, text, bytes, false, used);
}

static mx_status translate(const char *text, size_t bytes, target *to)
{
    for (size_t i = 0; i < bytes;) {
        const char *at = text + i, *rest = at + 1;
        size_t left = bytes - i - 1, used = 0;
        i++;
        if (*at == '\\' || *at == '[') {
            MX_TRY((*at == '[' ? translate_class : translate_escape)(to, rest, left, &used));
            i += used;
            continue;
        }
        if (*at == '(')
            MX_TRY(check_group(rest, left));
        if (*at == '}' && left > 0 && *rest == '+')
            return refuse("a + after a repetition in braces");
        MX_TRY(mx_buffer_put(&to->text, at, 1));
        if (*at == '{' && left > 0 && *rest == ',')
            MX_TRY(mx_buffer_put(&to->text, "0", 1));
    }
    return mx_buffer_put(&to->text, "", 1);
}

/* ---- compiling ---- */

static mx_status compile(const char *text, size_t bytes, bool literal, program *p)
{
    uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
    options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error;
    PCRE2_SIZE offset;
    p->code = pcre2_compile((PCRE2_SPTR)text, bytes, options, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        char message[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return mx_fail(MX_ERR_VALUE, "the pattern '%.*s' cannot be compiled: %s", bytes < 200 ? (int)bytes : 200, text,
                       message);
    }
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    p->stack = p->jit ? pcre2_jit_stack_create(32 << 10, STACK_BYTES, NULL) : NULL;
    if (!p->match || !p->context || (p->jit && !p->stack))
        return mx_fail(MX_ERR_MEMORY, "out of memory for a pattern");
    if (p->jit)
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return MX_OK;
}

static void free_program(program *p)
{
    pcre2_jit_stack_free(p->stack);
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
}

void mx_pattern_free(mx_pattern *p)
{
    if (!p)
        return;
    free_program(&p->plain);
    free_program(&p->whole);
    free(p);
}

static mx_status new_pattern(mx_pattern **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? MX_OK : mx_fail(MX_ERR_MEMORY, "out of memory for a pattern");
}

static mx_status finish(mx_status status, mx_pattern **out)
{
    if (status != MX_OK) {
        mx_pattern_free(*out);
        *out = NULL;
    }
    return status;
}

/* Compiles both programs from their texts, which end with a zero byte. */
static mx_status compile_both(const char *plain, const char *whole, mx_pattern *p)
{
    MX_TRY(compile(whole, strlen(whole), false, &p->whole));
    return strcmp(plain, whole) == 0 ? MX_OK : compile(plain, strlen(plain), false, &p->plain);
}

static mx_status compile_translated(const char *text, size_t bytes, mx_pattern *p)
{
    target plain = {0}, whole = {.whole = true, .pattern = p};
    mx_status status = translate(text, bytes, &plain);
    if (status == MX_OK)
        status = translate(text, bytes, &whole);
    if (status == MX_OK)
        status = compile_both(plain.text.data, whole.text.data, p);
    mx_buffer_free(&plain.text);
    mx_buffer_free(&whole.text);
    return status;
}

mx_status mx_pattern_compile(const char *text, size_t bytes, bool literal, mx_pattern **out)
{
    *out = NULL;
    if (bytes > PATTERN_BYTES)
        return mx_fail(MX_ERR_VALUE, "a pattern of %zu bytes; at most %d are supported", bytes, PATTERN_BYTES);
    if (memchr(text, 0, bytes))
        return refuse("a zero byte");
    MX_TRY(new_pattern(out));
    mx_status status = literal ? compile(text, bytes, true, &(*out)->whole) : compile_translated(text, bytes, *out);
    return finish(status, out);
}

/* Compiles a pattern for one character of a set, at the start of a text or anywhere. */
static mx_status compile_set(const char *name, bool at_start, mx_pattern *p)
{
    target plain = {0}, whole = {.whole = true, .pattern = p};
    set s = {.content = known_content(name)};
    mx_status status = MX_OK;
    for (int i = 0; i < 2 && status == MX_OK; i++) {
        target *to = i == 0 ? &plain : &whole;
        to->whole =
            to->whole || at_start; /* checking the whole text first would cost more than it saves for one character */
        measure(to, &s);
        status = put_text(&to->text, at_start ? "\\A" : "");
        if (status == MX_OK)
            status = put_brackets(&to->text, false, s.content, s.bytes);
        if (status == MX_OK)
            status = mx_buffer_put(&to->text, "", 1);
    }
    if (status == MX_OK)
        status = compile_both(plain.text.data, whole.text.data, p);
    mx_buffer_free(&plain.text);
    mx_buffer_free(&whole.text);
    return status;
}

mx_status mx_pattern_of_set(const char *name, bool at_start, mx_pattern **out)
{
    MX_TRY(new_pattern(out));
    return finish(compile_set(name, at_start, *out), out);
}

/* ---- searching ---- */

static mx_status fail_match(int error)
{
    char message[128] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return mx_fail(MX_ERR_VALUE, "encode: a pattern of the tokenizer gives up on this text: %s", message);
}

/* Whether a valid UTF-8 text has a character in a block that is marked in p->newer. A block is the codes that differ
 * only in their last UTF-8 byte. */
static bool has_newer(const mx_pattern *p, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    while (at < end) {
        uint64_t part;
        if (end - at >= 8 && (memcpy(&part, at, 8), (part & 0x8080808080808080ULL) == 0)) {
            at += 8;
            continue;
        }
        unsigned block = 0;
        if (at[0] < 0x80)
            at++;
        else if (at[0] < 0xe0) {
            block = at[0] & 31u;
            at += 2;
        } else if (at[0] < 0xf0) {
            block = (at[0] & 15u) << 6 | (at[1] & 63u);
            at += 3;
        } else {
            block = (at[0] & 7u) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u);
            at += 4;
        }
        if (p->newer[block / 64] >> block % 64 & 1)
            return true;
    }
    return false;
}

mx_status mx_pattern_next(mx_pattern *pattern, mx_search *s, size_t *start, size_t *end, bool *found)
{
    if (!s->chosen) {
        s->chosen = true;
        s->plain = pattern->plain.code && !has_newer(pattern, s->text, s->bytes);
    }
    program *p = s->plain ? &pattern->plain : &pattern->whole;
    *found = false;
    size_t steps =
        MATCH_STEPS + STEPS_PER_BYTE * (s->bytes - s->at); /* some patterns scan the whole rest of the text */
    pcre2_set_match_limit(p->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    while (s->at <= s->bytes) {
        PCRE2_SPTR text = (PCRE2_SPTR)s->text;
        int result = p->jit ? pcre2_jit_match(p->code, text, s->bytes, s->at, 0, p->match, p->context)
                            : pcre2_match(p->code, text, s->bytes, s->at, PCRE2_NO_UTF_CHECK, p->match, p->context);
        if (result == PCRE2_ERROR_NOMATCH)
            return MX_OK;
        if (result < 0)
            return fail_match(result);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(p->match);
        if (at[0] > at[1] || at[0] < s->at)
            return mx_fail(MX_ERR_VALUE, "encode: a pattern of the tokenizer matches backwards");
        if (at[0] == at[1] && s->any && s->last == at[1]) { /* an empty match right after the last one does not count */
            int length = 1;
            if (s->at < s->bytes)
                (void)mx_utf8_read(s->text + s->at, s->bytes - s->at, &length);
            s->at += (size_t)length;
            continue;
        }
        *start = at[0];
        *end = s->at = s->last = at[1];
        *found = s->any = true;
        return MX_OK;
    }
    return MX_OK;
}
