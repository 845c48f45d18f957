#include "tokenizer/tokenizer.h"

#include "io/file.h"
#include "io/json.h"
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static mx_status new_tokenizer(mx_tokenizer **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tokenizer");
    (*out)->bos = (*out)->eos = -1;
    return MX_OK;
}

/* ---- bytes ---- */

static mx_status make_bytes(mx_tokenizer *t)
{
    t->is_bytes = true;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        MX_TRY(mx_pieces_set(&t->vocabulary, i, &byte, 1));
        MX_TRY(mx_pieces_set(&t->decoded, i, &byte, 1));
    }
    return mx_pieces_index(&t->vocabulary);
}

static mx_status encode_bytes(const char *text, size_t bytes, mx_ids *ids)
{
    MX_TRY(mx_ids_reserve(ids, (int64_t)bytes));
    for (size_t i = 0; i < bytes; i++)
        ids->data[ids->used++] = (unsigned char)text[i];
    return MX_OK;
}

/* ---- opening ---- */

mx_status mx_tokenizer_parse(const char *json, size_t bytes, const char *name, mx_tokenizer **out)
{
    mx_value root;
    mx_tokenizer *t;
    *out = NULL;
    MX_TRY(mx_json_parse(json, bytes, name, &root));
    mx_status status = new_tokenizer(&t);
    if (status == MX_OK)
        status = mx_tokenizer_read(t, &root, name);
    mx_value_free(&root);
    if (status == MX_OK)
        *out = t;
    else
        mx_tokenizer_close(t);
    return status;
}

mx_status mx_tokenizer_open(const char *path, mx_tokenizer **out)
{
    *out = NULL;
    if (path[0] == 0 || strcmp(path, "bytes") == 0) {
        mx_tokenizer *t;
        MX_TRY(new_tokenizer(&t));
        mx_status status = make_bytes(t);
        if (status == MX_OK)
            *out = t;
        else
            mx_tokenizer_close(t);
        return status;
    }
    char *json;
    size_t bytes;
    MX_TRY(mx_file_read(path, 0, &json, &bytes));
    mx_status status = mx_tokenizer_parse(json, bytes, path, out);
    free(json);
    return status;
}

void mx_tokenizer_close(mx_tokenizer *t)
{
    if (!t)
        return;
    mx_pieces_free(&t->vocabulary);
    mx_pieces_free(&t->renamed);
    mx_pieces_free(&t->decoded);
    mx_norms_free(&t->norms);
    mx_added_set_free(&t->raw);
    mx_added_set_free(&t->normalized);
    for (int i = 0; i < t->n_steps; i++) {
        mx_pattern_free(t->step[i].pattern);
        mx_buffer_free(&t->step[i].buffer);
    }
    for (int i = 0; i < t->n_decoders; i++) {
        free(t->decoder[i].pattern);
        free(t->decoder[i].content);
    }
    mx_bpe_free(&t->bpe);
    mx_buffer_free(&t->repaired);
    mx_buffer_free(&t->scratch);
    free(t);
}

/* ---- properties ---- */

int64_t mx_tokenizer_vocab_size(const mx_tokenizer *t) { return t->vocabulary.count; }

int32_t mx_tokenizer_id(const mx_tokenizer *t, const char *text, size_t bytes)
{
    return mx_pieces_find(&t->vocabulary, text, bytes);
}

bool mx_tokenizer_piece(const mx_tokenizer *t, int64_t id, const char **text, size_t *bytes)
{
    const mx_piece *piece = mx_pieces_get(&t->vocabulary, id);
    if (!piece)
        return false;
    *text = mx_piece_text(&t->vocabulary, piece);
    *bytes = (size_t)piece->bytes;
    return true;
}

int32_t mx_tokenizer_bos(const mx_tokenizer *t) { return t->bos; }

int32_t mx_tokenizer_eos(const mx_tokenizer *t) { return t->eos; }

static mx_status check_id(const mx_tokenizer *t, int64_t id, const char *what)
{
    if (id == -1 || mx_pieces_get(&t->vocabulary, id))
        return MX_OK;
    return mx_fail(MX_ERR_VALUE, "tokenizer: %s is %lld; expected -1 (none) or the id of one of its %lld tokens", what,
                   (long long)id, (long long)t->vocabulary.count);
}

mx_status mx_tokenizer_set_bos(mx_tokenizer *t, int64_t id)
{
    MX_TRY(check_id(t, id, "BOS"));
    t->bos = (int32_t)id;
    return MX_OK;
}

mx_status mx_tokenizer_set_eos(mx_tokenizer *t, int64_t id)
{
    MX_TRY(check_id(t, id, "EOS"));
    t->eos = (int32_t)id;
    return MX_OK;
}

/* ---- encoding ---- */

/* Encodes the text between two tokens that were found before normalization. */
static mx_status encode_stretch(mx_tokenizer *t, const char *text, size_t bytes, bool at_start, mx_ids *ids)
{
    if (bytes == 0)
        return MX_OK;
    MX_TRY(mx_normalize(&t->norms, &text, &bytes));
    size_t done = 0, scan = 0;
    for (int32_t id = 0; id >= 0;) {
        size_t start, end;
        MX_TRY(mx_added_next(&t->normalized, text, bytes, done, &scan, &start, &end, &id));
        if (start > done)
            MX_TRY(mx_split(t, 0, text + done, start - done, at_start && done == 0, ids));
        if (id >= 0)
            MX_TRY(mx_ids_put(ids, id));
        done = end;
    }
    return MX_OK;
}

static mx_status encode_text(mx_tokenizer *t, const char *text, size_t bytes, mx_ids *ids)
{
    MX_TRY(mx_utf8_repair(&text, &bytes, &t->repaired));
    size_t done = 0, scan = 0;
    for (int32_t id = 0; id >= 0;) {
        size_t start, end;
        MX_TRY(mx_added_next(&t->raw, text, bytes, done, &scan, &start, &end, &id));
        if (start > done)
            MX_TRY(encode_stretch(t, text + done, start - done, done == 0, ids));
        if (id >= 0)
            MX_TRY(mx_ids_put(ids, id));
        done = end;
    }
    return MX_OK;
}

static mx_status encode(mx_tokenizer *t, const char *text, size_t bytes, int flags, mx_ids *ids)
{
    if (flags & MX_ENCODE_BOS && t->bos >= 0)
        MX_TRY(mx_ids_put(ids, t->bos));
    MX_TRY(t->is_bytes ? encode_bytes(text, bytes, ids) : encode_text(t, text, bytes, ids));
    if (flags & MX_ENCODE_EOS && t->eos >= 0)
        MX_TRY(mx_ids_put(ids, t->eos));
    return MX_OK;
}

mx_status mx_tokenizer_encode(mx_tokenizer *t, const char *text, size_t bytes, int flags, int32_t **ids, int64_t *count)
{
    if (bytes > (size_t)1 << 30)
        return mx_fail(MX_ERR_VALUE, "encode: a text of %zu bytes; at most 2^30 at once: cut it into documents", bytes);
    mx_ids out = {0};
    mx_status status = mx_ids_reserve(&out, (int64_t)(bytes / 4 + 2));
    if (status == MX_OK)
        status = encode(t, text, bytes, flags, &out);
    if (status != MX_OK) {
        free(out.data);
        return status;
    }
    *ids = out.data;
    *count = out.used;
    return MX_OK;
}
