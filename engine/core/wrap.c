#include "core/wrap.h"

#include <stdlib.h>
#include <string.h>

static const char indent[] = "\n    ";
enum { INDENT = sizeof indent - 1 };

/* The columns of `bytes` bytes: UTF-8's continuation bytes have none. */
static int columns_of(const char *text, size_t bytes)
{
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

char *mx_wrap(const char *text, int columns)
{
    char *out = malloc(strlen(text) * INDENT + 1), *end = out; /* at most one break for each byte */
    if (!out)
        return NULL;
    for (int at = 0; *text;) {
        size_t blanks = strspn(text, " "), word = strcspn(text + blanks, " ");
        int width = columns_of(text + blanks, word);
        if (at > 0 && word > 0 && at + (int)blanks + width > columns) {
            memcpy(end, indent, INDENT);
            end += INDENT;
            at = INDENT - 1;
        } else {
            memcpy(end, text, blanks);
            end += blanks;
            at += (int)blanks;
        }
        memcpy(end, text + blanks, word);
        end += word;
        at += width;
        text += blanks + word;
    }
    *end = '\0';
    return out;
}
