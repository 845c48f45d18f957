/* Byte-pair encoding: repeatedly merges the adjacent pair of symbols whose merge has the lowest rank, the leftmost of
 * equal ones, until no pair has a merge. */
#include "tokenizer/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 48 }; /* words of at most so many bytes are merged by a linear search, longer ones with a heap */
enum { CACHE_SLOTS = 1 << 16, CACHED_BYTES = 30, CACHED_IDS = 8 }; /* a slot is 64 bytes */
enum { CHARS = 1 << 16, NO_MERGE = INT_MAX, MARK_BYTES = 3 };

static const char MARK[] = "\xe2\x96\x81"; /* U+2581, SentencePiece's space */

struct mx_word_slot {
    unsigned char bytes, n_ids; /* bytes 0: free */
    char word[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

/* ---- merges ---- */

static inline size_t pair_hash(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15ULL;
    return (size_t)(pair ^ pair >> 32);
}

static mx_pair_slot *find_pair(const mx_bpe *b, uint64_t pair)
{
    size_t at = pair_hash(pair) & b->mask;
    while (b->pair[at].rank >= 0 && b->pair[at].pair != pair)
        at = (at + 1) & b->mask;
    return &b->pair[at];
}

static inline int32_t rank_of(const mx_bpe *b, int32_t left, int32_t right)
{
    const mx_pair_slot *slot = find_pair(b, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return slot->rank >= 0 ? slot->rank : NO_MERGE;
}

mx_status mx_bpe_set_merges(mx_bpe *b, const int32_t (*merges)[3], int64_t count)
{
    size_t size = 16;
    while (size < 2 * (size_t)count)
        size *= 2;
    b->pair = malloc(size * sizeof *b->pair);
    b->result = malloc((size_t)(count + 1) * sizeof *b->result);
    if (!b->pair || !b->result)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %lld merges", (long long)count);
    memset(b->pair, 0xff, size * sizeof *b->pair);
    b->mask = size - 1;
    b->n_merges = count;
    for (int64_t i = 0; i < count; i++) {
        uint64_t pair = (uint64_t)(uint32_t)merges[i][0] << 32 | (uint32_t)merges[i][1];
        *find_pair(b, pair) = (mx_pair_slot){pair, (int32_t)i}; /* of equal pairs, the last one counts */
        b->result[i] = merges[i][2];
    }
    return MX_OK;
}

/* ---- a word as symbols ---- */

static int32_t find_model(const mx_tokenizer *t, const char *text, size_t bytes)
{
    int32_t id = mx_pieces_find(&t->vocabulary, text, bytes);
    return id >= 0 && t->vocabulary.piece[id].model ? id : -1;
}

static bool fall_back(const mx_bpe *b, const char *text, size_t bytes, int32_t *to, int64_t *count)
{
    if (!b->byte_fallback)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (b->byte_id[(unsigned char)text[i]] < 0)
            return false;
    for (size_t i = 0; i < bytes; i++)
        to[(*count)++] = b->byte_id[(unsigned char)text[i]];
    return true;
}

/* The initial symbols of a word, at most one per byte: characters; bytes of characters that the vocabulary lacks; or
 * the unknown token. As in the reference, the unknown token is put only when the next symbol that is not such a byte
 * comes, or at the end of the word. So bytes may come before it. */
static int64_t symbols_of(const mx_tokenizer *t, const char *word, size_t bytes, int32_t *to)
{
    const mx_bpe *b = &t->bpe;
    int64_t count = 0;
    bool unknown = false;
    for (size_t i = 0; i < bytes;) {
        int length = 1;
        int32_t id;
        if (b->byte_level) {
            id = b->byte_id[(unsigned char)word[i]];
        } else {
            int32_t code = mx_utf8_read(word + i, bytes - i, &length);
            id = code >= 0 && code < CHARS ? b->char_id[code] : find_model(t, word + i, (size_t)length);
        }
        const char *character = word + i;
        i += (size_t)length;
        if (id < 0 && !b->byte_level && fall_back(b, character, (size_t)length, to, &count))
            continue;
        if (id < 0 && b->unk < 0)
            continue;
        if (unknown && (id >= 0 || !b->fuse_unk))
            to[count++] = b->unk;
        unknown = id < 0;
        if (id >= 0)
            to[count++] = id;
    }
    if (unknown)
        to[count++] = b->unk;
    return count;
}

/* ---- merging ---- */

static int64_t merge_short(const mx_bpe *b, int32_t *ids, int64_t count)
{
    int32_t rank[SHORT];
    for (int64_t i = 0; i + 1 < count; i++)
        rank[i] = rank_of(b, ids[i], ids[i + 1]);
    while (count > 1) {
        int64_t at = 0;
        for (int64_t i = 1; i + 1 < count; i++)
            at = rank[i] < rank[at] ? i : at;
        if (rank[at] == NO_MERGE)
            break;
        ids[at] = b->result[rank[at]];
        count--;
        for (int64_t i = at + 1; i < count; i++)
            ids[i] = ids[i + 1];
        for (int64_t i = at + 1; i + 1 < count; i++)
            rank[i] = rank[i + 1];
        if (at + 1 < count)
            rank[at] = rank_of(b, ids[at], ids[at + 1]);
        if (at > 0)
            rank[at - 1] = rank_of(b, ids[at - 1], ids[at]);
    }
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t entry = heap[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (entry <= heap[child])
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = entry;
}

static void push(uint64_t *heap, size_t *count, uint64_t entry)
{
    size_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

static void set_rank(mx_bpe *b, size_t *heaped, int32_t at)
{
    int32_t next = b->next[at];
    b->rank[at] = next < 0 ? NO_MERGE : rank_of(b, b->work[at], b->work[next]);
    if (b->rank[at] != NO_MERGE)
        push(b->heap, heaped, (uint64_t)b->rank[at] << 32 | (uint32_t)at);
}

/* Joins the symbol at `at` to the one after it. */
static void merge_at(mx_bpe *b, size_t *heaped, int32_t at)
{
    int32_t gone = b->next[at], after = b->next[gone];
    b->work[at] = b->result[b->rank[at]];
    b->next[at] = after;
    b->rank[gone] = NO_MERGE;
    if (after >= 0)
        b->previous[after] = at;
    set_rank(b, heaped, at);
    if (b->previous[at] >= 0)
        set_rank(b, heaped, b->previous[at]);
}

/* Merges with a linked list of the symbols in b->work and a heap of possible merges as (rank, position). An entry is
 * out of date if its position has another rank by now. Each merge removes one entry and adds at most two, so 2 * count
 * entries are enough. */
static int64_t merge_long(mx_bpe *b, int64_t count)
{
    size_t heaped = 0;
    for (int32_t i = 0; i < count; i++) {
        b->next[i] = i + 1 < count ? i + 1 : -1;
        b->previous[i] = i - 1;
        b->rank[i] = i + 1 < count ? rank_of(b, b->work[i], b->work[i + 1]) : NO_MERGE;
        if (b->rank[i] != NO_MERGE)
            b->heap[heaped++] = (uint64_t)b->rank[i] << 32 | (uint32_t)i;
    }
    for (size_t i = heaped / 2; i-- > 0;)
        sift_down(b->heap, heaped, i);
    while (heaped > 0) {
        uint64_t entry = b->heap[0];
        b->heap[0] = b->heap[--heaped];
        if (heaped > 0)
            sift_down(b->heap, heaped, 0);
        int32_t at = (int32_t)(uint32_t)entry;
        if (b->rank[at] == (int32_t)(entry >> 32))
            merge_at(b, &heaped, at);
    }
    int64_t kept = 0;
    for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = b->next[i])
        b->work[kept++] = b->work[i];
    return kept;
}

/* ---- words ---- */

static mx_status reserve_work(mx_bpe *b, size_t symbols)
{
    if (symbols <= b->room)
        return MX_OK;
    size_t room = symbols + symbols / 2;
    free(b->heap);
    b->room = 0;
    b->heap = malloc(room * (4 * sizeof *b->work + 2 * sizeof *b->heap)); /* one block for all five */
    if (!b->heap)
        return mx_fail(MX_ERR_MEMORY, "out of memory to encode a word of %zu bytes", symbols);
    b->work = (int32_t *)(b->heap + 2 * room);
    b->next = b->work + room;
    b->previous = b->next + room;
    b->rank = b->previous + room;
    b->room = room;
    return MX_OK;
}

/* The id of a whole word, for ignore_merges; -1: none. */
static int32_t find_whole(const mx_tokenizer *t, const char *word, size_t bytes)
{
    if (!t->bpe.ignore_merges)
        return -1;
    return t->bpe.byte_level ? mx_pieces_find(&t->bpe.words, word, bytes) : find_model(t, word, bytes);
}

static mx_status encode_long(mx_tokenizer *t, const char *word, size_t bytes, mx_ids *ids)
{
    mx_bpe *b = &t->bpe;
    MX_TRY(reserve_work(b, bytes));
    int64_t count = merge_long(b, symbols_of(t, word, bytes, b->work));
    MX_TRY(mx_ids_reserve(ids, count));
    memcpy(ids->data + ids->used, b->work, (size_t)count * sizeof *b->work);
    ids->used += count;
    return MX_OK;
}

/* Encodes a word of at most SHORT bytes that is not in the cache; returns the number of ids. */
static int64_t encode_short(const mx_tokenizer *t, const char *word, size_t bytes, int32_t *to)
{
    int32_t whole = find_whole(t, word, bytes);
    if (whole < 0)
        return merge_short(&t->bpe, to, symbols_of(t, word, bytes, to));
    to[0] = whole;
    return 1;
}

static mx_status encode_word(mx_tokenizer *t, const char *word, size_t bytes, mx_ids *ids)
{
    mx_bpe *b = &t->bpe;
    if (bytes > SHORT) {
        int32_t whole = find_whole(t, word, bytes);
        return whole >= 0 ? mx_ids_put(ids, whole) : encode_long(t, word, bytes, ids);
    }
    MX_TRY(mx_ids_reserve(ids, SHORT));
    int32_t *to = ids->data + ids->used;
    mx_word_slot *slot = NULL;
    if (bytes <= CACHED_BYTES) {
        slot = &b->cache[mx_hash_bytes(word, bytes) % CACHE_SLOTS];
        if (slot->bytes == bytes && memcmp(slot->word, word, bytes) == 0) {
            memcpy(to, slot->ids, sizeof slot->ids);
            ids->used += slot->n_ids;
            return MX_OK;
        }
    }
    int64_t count = encode_short(t, word, bytes, to);
    ids->used += count;
    if (slot && count <= CACHED_IDS) {
        slot->bytes = (unsigned char)bytes;
        slot->n_ids = (unsigned char)count;
        memcpy(slot->word, word, bytes);
        memcpy(slot->ids, to, (size_t)count * sizeof *to);
    }
    return MX_OK;
}

static bool is_mark(const char *text, size_t bytes)
{
    return bytes >= MARK_BYTES && memcmp(text, MARK, MARK_BYTES) == 0;
}

mx_status mx_bpe_encode(mx_tokenizer *t, const char *word, size_t bytes, mx_ids *ids)
{
    if (!t->bpe.at_marks)
        return encode_word(t, word, bytes, ids);
    for (size_t start = 0; start < bytes;) {
        size_t end = start;
        while (is_mark(word + end, bytes - end))
            end += MARK_BYTES;
        while (end < bytes && !is_mark(word + end, bytes - end)) {
            const char *next = memchr(word + end + 1, MARK[0], bytes - end - 1);
            end = next ? (size_t)(next - word) : bytes;
        }
        MX_TRY(encode_word(t, word + start, end - start, ids));
        start = end;
    }
    return MX_OK;
}

/* ---- preparation ---- */

/* Whether the result of any merge has a mark behind another character. */
static bool crosses_mark(const mx_tokenizer *t)
{
    for (int64_t i = 0; i < t->bpe.n_merges; i++) {
        const mx_piece *piece = &t->vocabulary.piece[t->bpe.result[i]];
        const char *text = mx_piece_text(&t->vocabulary, piece);
        size_t bytes = (size_t)piece->bytes, at = 0;
        while (is_mark(text + at, bytes - at))
            at += MARK_BYTES;
        for (; at < bytes; at++)
            if (is_mark(text + at, bytes - at))
                return true;
    }
    return false;
}

static mx_status prepare_bytes(mx_tokenizer *t)
{
    mx_bpe *b = &t->bpe;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        int length = b->byte_level ? mx_utf8_write(mx_byte_letter(byte), text) : 6;
        if (!b->byte_level) {
            static const char digits[] = "0123456789ABCDEF";
            const char spelled[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
            memcpy(text, spelled, sizeof spelled);
        }
        b->byte_id[byte] = find_model(t, text, (size_t)length);
        if (b->byte_level && b->byte_fallback && b->byte_id[byte] < 0)
            return mx_fail(MX_ERR_VALUE,
                           "model: byte_fallback with a ByteLevel alphabet that lacks byte %d is not supported", byte);
    }
    return MX_OK;
}

static mx_status prepare_characters(mx_tokenizer *t)
{
    mx_bpe *b = &t->bpe;
    b->char_id = malloc(CHARS * sizeof *b->char_id);
    if (!b->char_id)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tokenizer");
    memset(b->char_id, 0xff, CHARS * sizeof *b->char_id);
    for (int64_t id = 0; id < t->vocabulary.count; id++) {
        const mx_piece *piece = mx_pieces_get(&t->vocabulary, id);
        if (!piece || !piece->model || piece->bytes == 0)
            continue;
        int length;
        int32_t code = mx_utf8_read(mx_piece_text(&t->vocabulary, piece), (size_t)piece->bytes, &length);
        if (code >= 0 && code < CHARS && length == piece->bytes)
            b->char_id[code] = (int32_t)id;
    }
    b->at_marks = !b->ignore_merges && find_model(t, MARK, MARK_BYTES) >= 0 && !crosses_mark(t);
    return MX_OK;
}

/* For ignore_merges: the vocabulary with letters replaced by the bytes that they stand for. */
static mx_status prepare_words(mx_tokenizer *t)
{
    mx_buffer word = {0};
    mx_status status = MX_OK;
    for (int64_t id = 0; id < t->vocabulary.count && status == MX_OK; id++) {
        const mx_piece *piece = mx_pieces_get(&t->vocabulary, id);
        if (!piece || !piece->model)
            continue;
        bool are_letters;
        word.used = 0;
        status = mx_letters_to_bytes(mx_piece_text(&t->vocabulary, piece), (size_t)piece->bytes, &word, &are_letters);
        if (status == MX_OK && are_letters)
            status = mx_pieces_set(&t->bpe.words, id, word.data, word.used);
    }
    mx_buffer_free(&word);
    return status == MX_OK ? mx_pieces_index(&t->bpe.words) : status;
}

mx_status mx_bpe_prepare(mx_tokenizer *t)
{
    mx_bpe *b = &t->bpe;
    b->cache = calloc(CACHE_SLOTS, sizeof *b->cache);
    if (!b->cache)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tokenizer");
    MX_TRY(prepare_bytes(t));
    if (!b->byte_level)
        return prepare_characters(t);
    return b->ignore_merges ? prepare_words(t) : MX_OK;
}

void mx_bpe_free(mx_bpe *b)
{
    mx_pieces_free(&b->words);
    free(b->pair);
    free(b->result);
    free(b->char_id);
    free(b->cache);
    free(b->heap);
}
