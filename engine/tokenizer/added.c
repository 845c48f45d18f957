#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

enum { ADDED_BYTES = 512 }; /* limit of one token: every position of a text may be compared with as many bytes */

static int by_content(const void *a, const void *b)
{
    const mx_added *x = a, *y = b;
    int order = memcmp(x->content, y->content, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order)
        return order;
    return x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes) : x->order - y->order;
}

/* Removes empty tokens, and all but the first of equal ones. */
static void drop_equal(mx_added_set *set)
{
    int kept = 0;
    for (int i = 0; i < set->count; i++) {
        mx_added *token = &set->token[i], *before = kept > 0 ? &set->token[kept - 1] : NULL;
        bool same =
            before && before->bytes == token->bytes && memcmp(before->content, token->content, token->bytes) == 0;
        if (same || token->bytes == 0)
            free(token->content);
        else
            set->token[kept++] = *token;
    }
    set->count = kept;
}

static mx_status check_and_compile(mx_added_set *set)
{
    bool single_word = false;
    for (int i = 0; i < set->count; i++) {
        const mx_added *token = &set->token[i];
        if (token->bytes > ADDED_BYTES)
            return mx_fail(MX_ERR_VALUE, "the added token '%.40s...' has %zu bytes; at most %d are supported",
                           token->content, token->bytes, ADDED_BYTES);
        single_word = single_word || token->single_word;
    }
    return single_word ? mx_pattern_of_set("single word", true, &set->word) : MX_OK;
}

mx_status mx_added_set_make(mx_added_set *set, const mx_added *tokens, int count)
{
    *set = (mx_added_set){.token = calloc((size_t)count + 1, sizeof *tokens), .count = count};
    if (!set->token) {
        for (int i = 0; i < count; i++)
            free(tokens[i].content);
        set->count = 0;
        return mx_fail(MX_ERR_MEMORY, "out of memory for %d added tokens", count);
    }
    if (count > 0)
        memcpy(set->token, tokens, (size_t)count * sizeof *tokens);
    qsort(set->token, (size_t)count, sizeof *tokens, by_content);
    drop_equal(set);
    for (int byte = 0, i = 0; byte <= 256; byte++) {
        while (i < set->count && (unsigned char)set->token[i].content[0] < byte)
            i++;
        set->first[byte] = i;
    }
    return check_and_compile(set);
}

void mx_added_set_free(mx_added_set *set)
{
    for (int i = 0; i < set->count; i++)
        free(set->token[i].content);
    free(set->token);
    mx_pattern_free(set->word);
    *set = (mx_added_set){0};
}

/* The longest token that the text begins with; NULL: none. The tokens are sorted, so with each byte of the text the
 * range of tokens that still match shrinks. */
static const mx_added *longest_at(const mx_added_set *set, const char *text, size_t bytes)
{
    unsigned char byte = (unsigned char)text[0];
    int low = set->first[byte], high = set->first[byte + 1];
    const mx_added *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->token[low].bytes == depth) /* the shortest of a range comes first */
            best = &set->token[low++];
        if (depth == bytes)
            break;
        byte = (unsigned char)text[depth];
        while (low < high && (unsigned char)set->token[low].content[depth] < byte)
            low++;
        while (high > low && (unsigned char)set->token[high - 1].content[depth] > byte)
            high--;
    }
    return best;
}

static mx_status is_word(mx_added_set *set, const char *text, size_t bytes, bool *yes)
{
    mx_search search = {.text = text, .bytes = bytes};
    size_t start, end;
    return mx_pattern_next(set->word, &search, &start, &end, yes);
}

/* The start of a text's last character. */
static size_t last_character(const char *text, size_t bytes)
{
    do
        bytes--;
    while (bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80);
    return bytes;
}

/* Whether a character of a word touches text[start, end) on either side. */
static mx_status touches_word(mx_added_set *set, const char *text, size_t bytes, size_t start, size_t end, bool *yes)
{
    *yes = false;
    if (start > 0) {
        size_t before = last_character(text, start);
        MX_TRY(is_word(set, text + before, start - before, yes));
    }
    return *yes || end == bytes ? MX_OK : is_word(set, text + end, bytes - end, yes);
}

static void take_spaces(const mx_added *token, const char *text, size_t bytes, size_t from, size_t *start, size_t *end)
{
    int length;
    while (token->lstrip && *start > from) {
        size_t before = last_character(text, *start);
        if (before < from || !mx_is_white_space(mx_utf8_read(text + before, *start - before, &length)))
            break;
        *start = before;
    }
    while (token->rstrip && *end < bytes && mx_is_white_space(mx_utf8_read(text + *end, bytes - *end, &length)))
        *end += (size_t)length;
}

mx_status mx_added_next(mx_added_set *set, const char *text, size_t bytes, size_t from, size_t *scan, size_t *start,
                        size_t *end, int32_t *id)
{
    *id = -1;
    for (size_t i = *scan; i < bytes && set->count > 0;) {
        unsigned char byte = (unsigned char)text[i];
        const mx_added *token = NULL;
        if (set->first[byte] < set->first[byte + 1])
            token = longest_at(set, text + i, bytes - i);
        bool inside = false;
        if (token && token->single_word)
            MX_TRY(touches_word(set, text, bytes, i, i + token->bytes, &inside));
        if (!token || inside) {
            i += token ? token->bytes : 1;
            continue;
        }
        *start = i;
        *end = *scan = i + token->bytes;
        *id = token->id;
        take_spaces(token, text, bytes, from, start, end);
        return MX_OK;
    }
    *start = *end = bytes;
    return MX_OK;
}
