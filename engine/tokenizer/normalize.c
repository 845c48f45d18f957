#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { CODES = 0x30000 }; /* codes beyond this count as not inert */

/* ---- normal forms of Unicode ---- */

static bool is_left_alone(int32_t code)
{
    const int32_t(*range)[2] = mx_not_normalized;
    while ((*range)[0] >= 0 && (*range)[1] < code)
        range++;
    return (*range)[0] >= 0 && (*range)[0] <= code;
}

static mx_status put_library_form(mx_norm_kind kind, const char *text, size_t bytes, mx_buffer *to)
{
    static const int options[] = {
        [MX_NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [MX_NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [MX_NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [MX_NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *form = NULL;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &form, (utf8proc_option_t)options[kind]);
    if (length < 0)
        return mx_fail(length == UTF8PROC_ERROR_NOMEM ? MX_ERR_MEMORY : MX_ERR_VALUE, "encode: normalizing: %s",
                       utf8proc_errmsg(length));
    mx_status status = mx_buffer_put(to, (const char *)form, (size_t)length);
    free(form);
    return status;
}

/* Characters that the reference does not know stay unchanged; nothing is joined to them or moved across them. */
static mx_status put_form(mx_norm_kind kind, const char *text, size_t bytes, mx_buffer *to)
{
    size_t done = 0;
    for (size_t i = 0; i < bytes;) {
        int length = 1;
        int32_t code = (unsigned char)text[i] < 0x80 ? text[i] : mx_utf8_read(text + i, bytes - i, &length);
        if (is_left_alone(code)) {
            if (i > done)
                MX_TRY(put_library_form(kind, text + done, i - done, to));
            done = i + (size_t)length;
            MX_TRY(mx_buffer_put(to, text + i, (size_t)length));
        }
        i += (size_t)length;
    }
    return done < bytes ? put_library_form(kind, text + done, bytes - done, to) : MX_OK;
}

static void clear_bit(uint8_t *bits, int32_t code)
{
    if (code < CODES)
        bits[code >> 3] &= (uint8_t) ~(1 << (code & 7));
}

static bool is_own_form(int32_t code)
{
    char text[5] = "";
    mx_buffer form = {0};
    int length = mx_utf8_write(code, text);
    bool same = put_form(MX_NORM_NFC, text, (size_t)length, &form) == MX_OK && form.used == (size_t)length &&
                form.data && memcmp(form.data, text, form.used) == 0;
    mx_buffer_free(&form);
    return same;
}

/* Finds the inert codes: NFC does not change them, they are starters, and no composition has them as second character.
 */
static mx_status find_inert(mx_norms *n)
{
    n->inert = malloc(CODES / 8);
    if (!n->inert)
        return mx_fail(MX_ERR_MEMORY, "out of memory to normalize");
    memset(n->inert, 0xff, CODES / 8);
    for (int32_t code = 0x300; code < CODES; code++) {
        const utf8proc_property_t *property = utf8proc_get_property(code);
        if (property->combining_class != 0)
            clear_bit(n->inert, code);
        if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0)
            continue;
        utf8proc_int32_t parts[32];
        int class = 0;
        utf8proc_ssize_t count = utf8proc_decompose_char(code, parts, 32, UTF8PROC_DECOMPOSE, &class);
        for (utf8proc_ssize_t i = 1; i < count && i < 32; i++)
            clear_bit(n->inert, parts[i]);
        if (!is_own_form(code))
            clear_bit(n->inert, code);
    }
    for (int32_t code = 0x1161; code <= 0x11ff; code++) /* vowels and final consonants of Hangul */
        clear_bit(n->inert, code);
    return MX_OK;
}

static bool is_inert(const mx_norms *n, int32_t code) { return code < CODES && n->inert[code >> 3] >> (code & 7) & 1; }

/* Passes to the library only the parts that NFC may change: each from the inert code before it, which may take part in
 * a composition, to the next inert code. *changed is false if there are none; then nothing is written. */
static mx_status put_nfc(const mx_norms *n, const char *text, size_t bytes, mx_buffer *to, bool *changed)
{
    size_t written = 0, last = 0; /* last: the start of the latest inert code */
    *changed = false;
    for (size_t i = 0; i < bytes;) {
        int length = 1;
        int32_t code = (unsigned char)text[i] < 0x80 ? text[i] : mx_utf8_read(text + i, bytes - i, &length);
        if (is_inert(n, code)) {
            last = i;
            i += (size_t)length;
            continue;
        }
        size_t end = i;
        while (end < bytes && !is_inert(n, mx_utf8_read(text + end, bytes - end, &length)))
            end += (size_t)length;
        MX_TRY(mx_buffer_put(to, text + written, last - written));
        MX_TRY(put_form(MX_NORM_NFC, text + last, end - last, to));
        *changed = true;
        written = last = i = end;
    }
    return *changed ? mx_buffer_put(to, text + written, bytes - written) : MX_OK;
}

static bool is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

/* ---- steps ---- */

static mx_status put_replaced(const mx_norm *step, const char *text, size_t bytes, mx_buffer *to)
{
    mx_search search = {.text = text, .bytes = bytes};
    size_t done = 0, start = 0, end = 0;
    bool found = true;
    while (found) {
        MX_TRY(mx_pattern_next(step->pattern, &search, &start, &end, &found));
        if (!found)
            break;
        MX_TRY(mx_buffer_put(to, text + done, start - done));
        MX_TRY(mx_buffer_put(to, step->content, step->bytes));
        done = end;
    }
    return mx_buffer_put(to, text + done, bytes - done);
}

static mx_status run_step(const mx_norms *n, const mx_norm *step, const char *text, size_t bytes, mx_buffer *to,
                          bool *changed)
{
    *changed = true;
    switch (step->kind) {
    case MX_NORM_REPLACE:
        return put_replaced(step, text, bytes, to);
    case MX_NORM_PREPEND:
        MX_TRY(mx_buffer_put(to, step->content, bytes > 0 ? step->bytes : 0));
        return mx_buffer_put(to, text, bytes);
    case MX_NORM_NFC:
        return put_nfc(n, text, bytes, to, changed);
    default:
        *changed = !is_ascii(text, bytes);
        return *changed ? put_form(step->kind, text, bytes, to) : MX_OK;
    }
}

mx_status mx_normalize(mx_norms *n, const char **text, size_t *bytes)
{
    int next = 0; /* the buffer that does not hold *text */
    for (int i = 0; i < n->count; i++) {
        bool changed;
        n->buffer[next].used = 0;
        MX_TRY(run_step(n, &n->step[i], *text, *bytes, &n->buffer[next], &changed));
        if (!changed)
            continue;
        *text = n->buffer[next].data;
        *bytes = n->buffer[next].used;
        next = 1 - next;
    }
    return MX_OK;
}

mx_status mx_norms_prepare(mx_norms *n)
{
    for (int i = 0; i < n->count && !n->inert; i++)
        if (n->step[i].kind == MX_NORM_NFC)
            MX_TRY(find_inert(n));
    return MX_OK;
}

void mx_norms_free(mx_norms *n)
{
    for (int i = 0; i < n->count; i++) {
        mx_pattern_free(n->step[i].pattern);
        free(n->step[i].content);
    }
    free(n->step);
    free(n->inert);
    mx_buffer_free(&n->buffer[0]);
    mx_buffer_free(&n->buffer[1]);
}
