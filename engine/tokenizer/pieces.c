#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

mx_status mx_buffer_reserve(mx_buffer *b, size_t more)
{
    if (b->data && b->used + more <= b->room)
        return MX_OK;
    size_t room = 2 * b->room > b->used + more ? 2 * b->room : b->used + more + 64;
    char *data = realloc(b->data, room);
    if (!data)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %zu bytes of text", room);
    b->data = data;
    b->room = room;
    return MX_OK;
}

mx_status mx_buffer_put(mx_buffer *b, const char *data, size_t count)
{
    MX_TRY(mx_buffer_reserve(b, count));
    if (count > 0)
        memcpy(b->data + b->used, data, count);
    b->used += count;
    return MX_OK;
}

void mx_buffer_free(mx_buffer *b)
{
    free(b->data);
    *b = (mx_buffer){0};
}

mx_status mx_ids_reserve(mx_ids *ids, int64_t more)
{
    if (ids->used + more <= ids->room)
        return MX_OK;
    int64_t room = 2 * ids->room > ids->used + more ? 2 * ids->room : ids->used + more + 16;
    int32_t *data = realloc(ids->data, (size_t)room * sizeof *data);
    if (!data)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %lld token ids", (long long)room);
    ids->data = data;
    ids->room = room;
    return MX_OK;
}

mx_status mx_ids_put(mx_ids *ids, int32_t id)
{
    MX_TRY(mx_ids_reserve(ids, 1));
    ids->data[ids->used++] = id;
    return MX_OK;
}

/* ---- pieces ---- */

mx_status mx_pieces_set(mx_pieces *p, int64_t id, const char *text, size_t bytes)
{
    if (id >= p->room) {
        int64_t room = 2 * p->room > id ? 2 * p->room : id + 64;
        mx_piece *piece = realloc(p->piece, (size_t)room * sizeof *piece);
        if (!piece)
            return mx_fail(MX_ERR_MEMORY, "out of memory for %lld tokens", (long long)room);
        p->piece = piece;
        p->room = room;
    }
    for (; p->count <= id; p->count++)
        p->piece[p->count] = (mx_piece){.bytes = -1};
    size_t offset = p->text.used;
    MX_TRY(mx_buffer_put(&p->text, text, bytes));
    p->piece[id].offset = offset;
    p->piece[id].bytes = (int32_t)bytes;
    return MX_OK;
}

uint64_t mx_hash_bytes(const char *text, size_t bytes)
{
    uint64_t h = 0x9e3779b97f4a7c15ULL ^ bytes, part = 0;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&part, text, 8);
        h = (h ^ part) * 0xff51afd7ed558ccdULL;
        h ^= h >> 32;
    }
    if (bytes > 0) {
        part = 0;
        for (size_t i = 0; i < bytes; i++)
            part |= (uint64_t)(unsigned char)text[i] << 8 * i;
        h = (h ^ part) * 0xff51afd7ed558ccdULL;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 29;
}

static int32_t *find_slot(const mx_pieces *p, const char *text, size_t bytes)
{
    size_t at = mx_hash_bytes(text, bytes) & p->mask;
    for (;; at = (at + 1) & p->mask) {
        if (p->slot[at] < 0)
            return &p->slot[at];
        const mx_piece *piece = &p->piece[p->slot[at]];
        if ((size_t)piece->bytes == bytes && memcmp(mx_piece_text(p, piece), text, bytes) == 0)
            return &p->slot[at];
    }
}

mx_status mx_pieces_index(mx_pieces *p)
{
    size_t size = 16;
    while (size < 2 * (size_t)p->count)
        size *= 2;
    free(p->slot);
    p->slot = malloc(size * sizeof *p->slot);
    p->mask = p->slot ? size - 1 : 0;
    if (!p->slot)
        return mx_fail(MX_ERR_MEMORY, "out of memory to index %lld tokens", (long long)p->count);
    memset(p->slot, 0xff, size * sizeof *p->slot);
    for (int64_t id = 0; id < p->count; id++) {
        const mx_piece *piece = mx_pieces_get(p, id);
        if (!piece)
            continue;
        int32_t *slot = find_slot(p, mx_piece_text(p, piece), (size_t)piece->bytes);
        if (*slot < 0)
            *slot = (int32_t)id;
    }
    return MX_OK;
}

int32_t mx_pieces_find(const mx_pieces *p, const char *text, size_t bytes)
{
    return p->mask ? *find_slot(p, text, bytes) : -1;
}

void mx_pieces_free(mx_pieces *p)
{
    mx_buffer_free(&p->text);
    free(p->piece);
    free(p->slot);
    *p = (mx_pieces){0};
}
