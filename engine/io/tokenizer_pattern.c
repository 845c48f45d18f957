/* Patterns run on PCRE2. The reference runs them on Oniguruma in Ruby's syntax: what the two read differently is
 * written anew here, or refused. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "io/tokenizer_internal.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_BYTES = 8192, STACK_BYTES = 8 << 20 };
enum { MATCH_STEPS = 1000000, STEPS_PER_BYTE = 4 }; /* of one search at most */

struct mx_pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool jit;
};

/* ---- from Oniguruma's syntax to PCRE2's ---- */

/* PCRE2's own \s has U+180E, which Unicode has taken out; its \w lacks marks and some letters. */
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX "0-9A-Fa-f"

static const struct set {
    char letter;
    const char *content;
} sets[] = {{'s', SPACES}, {'w', WORDS}, {'h', HEX}};

static mx_status refuse(const char *what) { return mx_fail(MX_ERR_VALUE, "a pattern with %s is not supported", what); }

static mx_status put_text(mx_buffer *to, const char *text) { return mx_buffer_put(to, text, strlen(text)); }

/* \s, \w, \h and their opposites; *done false for any other letter. */
static mx_status put_set(mx_buffer *to, char letter, bool in_class, bool *done)
{
    *done = false;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (tolower((unsigned char)letter) != sets[i].letter)
            continue;
        *done = true;
        bool opposite = letter != sets[i].letter;
        if (in_class && opposite)
            return letter == 'S' ? put_text(to, "\\P{White_Space}") : refuse("\\W or \\H inside brackets");
        if (!in_class)
            MX_TRY(put_text(to, opposite ? "[^" : "["));
        MX_TRY(put_text(to, sets[i].content));
        return in_class ? MX_OK : put_text(to, "]");
    }
    return MX_OK;
}

/* An escape; `text` is behind the backslash, *used what was read of it. */
static mx_status put_escape(mx_buffer *to, const char *text, size_t bytes, bool in_class, size_t *used)
{
    *used = 1;
    if (bytes == 0)
        return refuse("a backslash at its end");
    char c = text[0];
    bool done;
    MX_TRY(put_set(to, c, in_class, &done));
    if (done)
        return MX_OK;
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
    if (isalnum((unsigned char)c) && !strchr(in_class ? "dDpPnrtfeaxb0" : "dDpPnrtfeaxAzZRX0", c)) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = c;
        return refuse(what);
    }
    if (bytes > 1 && strchr("pPx", c) && text[1] == '{') {
        const char *end = memchr(text, '}', bytes);
        *used = end ? (size_t)(end - text) + 1 : bytes;
    }
    MX_TRY(mx_buffer_put(to, "\\", 1));
    return mx_buffer_put(to, text, *used);
}

static mx_status check_group(const char *text, size_t bytes) /* `text` is behind the opening parenthesis */
{
    if (bytes > 0 && text[0] == '*')
        return refuse("(*");
    if (bytes > 1 && text[0] == '?' && !strchr(":=!><i-", text[1]))
        return refuse("a group that is none of (?: (?= (?! (?<= (?<! (?> (?i:");
    return MX_OK;
}

static mx_status translate(const char *text, size_t bytes, mx_buffer *to)
{
    bool in_class = false;
    for (size_t i = 0; i < bytes;) {
        const char *at = text + i, *rest = at + 1;
        size_t left = bytes - i - 1, used = 0;
        if (*at == '\\') {
            MX_TRY(put_escape(to, rest, left, in_class, &used));
            i += 1 + used;
            continue;
        }
        if (in_class && (*at == '[' || (*at == '&' && left > 0 && *rest == '&')))
            return refuse("brackets inside brackets, or && there");
        if (!in_class && *at == '(')
            MX_TRY(check_group(rest, left));
        if (!in_class && *at == '}' && left > 0 && *rest == '+')
            return refuse("a + after a repetition in braces");
        in_class = *at == '[' || (in_class && *at != ']');
        MX_TRY(mx_buffer_put(to, at, 1));
        if (!in_class && *at == '{' && left > 0 && *rest == ',')
            MX_TRY(mx_buffer_put(to, "0", 1));
        i++;
    }
    return MX_OK;
}

/* ---- compiling ---- */

static mx_status compile(const char *text, size_t bytes, bool literal, mx_pattern *p)
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
        return mx_fail(MX_ERR_VALUE, "the pattern '%.200s' cannot be compiled: %s", text, message);
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

mx_status mx_pattern_compile(const char *text, size_t bytes, bool literal, mx_pattern **out)
{
    *out = NULL;
    if (bytes > PATTERN_BYTES)
        return mx_fail(MX_ERR_VALUE, "a pattern of %zu bytes; at most %d are supported", bytes, PATTERN_BYTES);
    if (memchr(text, 0, bytes))
        return refuse("a zero byte");
    mx_pattern *p = calloc(1, sizeof *p);
    if (!p)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a pattern");
    mx_buffer translated = {0};
    mx_status status = literal ? mx_buffer_put(&translated, text, bytes) : translate(text, bytes, &translated);
    if (status == MX_OK)
        status = mx_buffer_put(&translated, "", 1);
    if (status == MX_OK)
        status = compile(translated.data, translated.used - 1, literal, p);
    mx_buffer_free(&translated);
    if (status != MX_OK) {
        mx_pattern_free(p);
        return status;
    }
    *out = p;
    return MX_OK;
}

void mx_pattern_free(mx_pattern *p)
{
    if (!p)
        return;
    pcre2_jit_stack_free(p->stack);
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    free(p);
}

/* ---- searching ---- */

static mx_status fail_match(int error)
{
    char message[128] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return mx_fail(MX_ERR_VALUE, "encode: a pattern of the tokenizer gives up on this text: %s", message);
}

mx_status mx_pattern_next(mx_pattern *p, mx_search *s, size_t *start, size_t *end, bool *found)
{
    *found = false;
    size_t steps = MATCH_STEPS + STEPS_PER_BYTE * (s->bytes - s->at); /* some patterns look through all that is left */
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
