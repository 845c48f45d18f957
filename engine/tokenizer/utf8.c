#include "tokenizer/internal.h"

#include <string.h>

int32_t mx_utf8_read(const char *text, size_t bytes, int *length)
{
    const unsigned char *s = (const unsigned char *)text;
    *length = 1;
    if (s[0] < 0x80)
        return s[0];
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return -1;
    int need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    int32_t code = s[0] & (0x7f >> need);
    /* The range of the second byte excludes overlong forms, surrogates and codes beyond U+10FFFF. */
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= bytes || s[i] < low || s[i] > high)
            return -1;
        code = code << 6 | (s[i] & 0x3f);
        *length = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return code;
}

int mx_utf8_write(int32_t code, char to[4])
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)(0xf00 >> length | code);
    return length;
}

bool mx_is_white_space(int32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The length of the valid UTF-8 at the start of the text. */
static size_t valid_bytes(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes) {
        uint64_t part;
        if (bytes - i >= 8 && (memcpy(&part, text + i, 8), (part & 0x8080808080808080ULL) == 0)) {
            i += 8;
            continue;
        }
        int length;
        if (mx_utf8_read(text + i, bytes - i, &length) < 0)
            return i;
        i += (size_t)length;
    }
    return i;
}

mx_status mx_utf8_repair(const char **text, size_t *bytes, mx_buffer *copy)
{
    size_t good = valid_bytes(*text, *bytes);
    if (good == *bytes)
        return MX_OK;
    copy->used = 0;
    for (size_t i = 0; i < *bytes;) {
        MX_TRY(mx_buffer_put(copy, *text + i, good));
        i += good;
        if (i < *bytes) {
            int length;
            (void)mx_utf8_read(*text + i, *bytes - i, &length);
            MX_TRY(mx_buffer_put(copy, "\xef\xbf\xbd", 3));
            i += (size_t)length;
        }
        good = valid_bytes(*text + i, *bytes - i);
    }
    *text = copy->data;
    *bytes = copy->used;
    return MX_OK;
}

/* ---- bytes as letters ---- */

static bool is_own_letter(int byte) { return (byte > 32 && byte < 127) || (byte > 160 && byte != 173); }

int32_t mx_byte_letter(int byte)
{
    if (is_own_letter(byte))
        return byte;
    int before = 0; /* number of bytes below this one that do not stand for themselves */
    for (int b = 0; b < byte; b++)
        before += !is_own_letter(b);
    return 256 + before;
}

int mx_letter_byte(int32_t code)
{
    if (code < 0)
        return -1;
    if (code < 256)
        return is_own_letter(code) ? code : -1;
    int before = code - 256;
    for (int b = 0; b < 256; b++)
        if (!is_own_letter(b) && before-- == 0)
            return b;
    return -1;
}

mx_status mx_letters_to_bytes(const char *text, size_t bytes, mx_buffer *to, bool *are_letters)
{
    size_t used = to->used;
    *are_letters = true;
    for (size_t i = 0; i < bytes && *are_letters;) {
        int length;
        int byte = mx_letter_byte(mx_utf8_read(text + i, bytes - i, &length));
        char c = (char)byte;
        *are_letters = byte >= 0;
        MX_TRY(mx_buffer_put(to, &c, 1));
        i += (size_t)length;
    }
    if (*are_letters)
        return MX_OK;
    to->used = used;
    return mx_buffer_put(to, text, bytes);
}
