/* Reads tokenizer.json: the model, the added tokens, and the post-processor with BOS and EOS. */
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

mx_status mx_field(mx_source s, const mx_value *map, const char *key, mx_kind kind, const mx_value **out)
{
    *out = mx_value_get(map, key);
    if (!*out)
        return mx_fail(MX_ERR_VALUE, "%s: %s: '%s' is missing: expected %s", s.name, s.part, key, mx_kind_name(kind));
    if ((*out)->kind != kind)
        return mx_fail(MX_ERR_VALUE, "%s: %s: '%s': expected %s, got %s", s.name, s.part, key, mx_kind_name(kind),
                       mx_kind_name((*out)->kind));
    return MX_OK;
}

mx_status mx_field_bool(mx_source s, const mx_value *map, const char *key, bool standard, bool *out)
{
    const mx_value *value = mx_value_get(map, key);
    *out = standard;
    if (!value || value->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field(s, map, key, MX_BOOL, &value));
    *out = value->boolean;
    return MX_OK;
}

mx_status mx_field_type(mx_source s, const mx_value *map, const char **out)
{
    const mx_value *type;
    if (map->kind != MX_MAP)
        return mx_fail(MX_ERR_VALUE, "%s: %s: expected a map with a 'type', got %s", s.name, s.part,
                       mx_kind_name(map->kind));
    MX_TRY(mx_field(s, map, "type", MX_STRING, &type));
    *out = type->text;
    return MX_OK;
}

mx_status mx_read_sequence(mx_tokenizer *t, const mx_value *map, const char *key, mx_source s, mx_read_part read)
{
    const mx_value *parts;
    MX_TRY(mx_field(s, map, key, MX_ARRAY, &parts));
    for (size_t i = 0; i < parts->count; i++) {
        if (parts->entries[i].value.kind != MX_MAP)
            return mx_fail(MX_ERR_VALUE, "%s: %s: Sequence: expected maps, got %s", s.name, s.part,
                           mx_kind_name(parts->entries[i].value.kind));
        MX_TRY(read(t, &parts->entries[i].value, s));
    }
    return MX_OK;
}

/* ---- the vocabulary ---- */

/* Checks an id. Ids may leave holes, but not so many that a short file needs much memory. */
static mx_status check_id(mx_source s, const char *text, const mx_value *id, size_t tokens)
{
    int64_t limit = 2 * (int64_t)tokens + 65536;
    if (id->kind != MX_INT)
        return mx_fail(MX_ERR_VALUE, "%s: %s: the id of '%.60s' is %s; expected an integer", s.name, s.part, text,
                       mx_kind_name(id->kind));
    if (id->integer < 0 || id->integer >= limit)
        return mx_fail(MX_ERR_VALUE, "%s: %s: the id of '%.60s' is %lld; expected 0 to %lld with %zu tokens", s.name,
                       s.part, text, (long long)id->integer, (long long)limit - 1, tokens);
    return MX_OK;
}

static mx_status read_vocabulary(mx_tokenizer *t, const mx_value *vocab, mx_source s)
{
    for (size_t i = 0; i < vocab->count; i++) {
        const mx_entry *entry = &vocab->entries[i];
        MX_TRY(check_id(s, entry->key, &entry->value, vocab->count));
        int64_t id = entry->value.integer;
        const mx_piece *taken = mx_pieces_get(&t->vocabulary, id);
        if (taken)
            return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s' and '%.*s' both have the id %lld", s.name, s.part, entry->key,
                           taken->bytes < 60 ? taken->bytes : 60, mx_piece_text(&t->vocabulary, taken), (long long)id);
        MX_TRY(mx_pieces_set(&t->vocabulary, id, entry->key, strlen(entry->key)));
        t->vocabulary.piece[id].model = true;
    }
    return mx_pieces_index(&t->vocabulary);
}

/* ---- merges ---- */

/* Splits a merge, "a b" or ["a", "b"], into two texts. */
static mx_status split_merge(mx_source s, size_t index, const mx_value *merge, const char *text[2], size_t bytes[2])
{
    if (merge->kind == MX_ARRAY && merge->count == 2 && merge->entries[0].value.kind == MX_STRING &&
        merge->entries[1].value.kind == MX_STRING) {
        for (int i = 0; i < 2; i++) {
            text[i] = merge->entries[i].value.text;
            bytes[i] = merge->entries[i].value.length;
        }
        return MX_OK;
    }
    const char *space = merge->kind == MX_STRING ? memchr(merge->text, ' ', merge->length) : NULL;
    if (!space || memchr(space + 1, ' ', merge->length - (size_t)(space + 1 - merge->text)))
        return mx_fail(MX_ERR_VALUE, "%s: %s: merge %zu: expected two tokens, \"a b\" or [\"a\", \"b\"], got %s%.60s",
                       s.name, s.part, index, merge->kind == MX_STRING ? "" : mx_kind_name(merge->kind),
                       merge->kind == MX_STRING ? merge->text : "");
    text[0] = merge->text;
    bytes[0] = (size_t)(space - merge->text);
    text[1] = space + 1;
    bytes[1] = merge->length - bytes[0] - 1;
    return MX_OK;
}

static mx_status read_merge(const mx_tokenizer *t, const mx_value *merge, size_t index, mx_source s, mx_buffer *joined,
                            int32_t out[3])
{
    const char *text[2];
    size_t bytes[2];
    MX_TRY(split_merge(s, index, merge, text, bytes));
    joined->used = 0;
    for (int i = 0; i < 2; i++) {
        out[i] = mx_pieces_find(&t->vocabulary, text[i], bytes[i]);
        MX_TRY(mx_buffer_put(joined, text[i], bytes[i]));
    }
    out[2] = mx_pieces_find(&t->vocabulary, joined->data, joined->used);
    for (int i = 0; i < 3; i++)
        if (out[i] < 0) {
            const char *what = i < 2 ? text[i] : joined->data;
            size_t length = i < 2 ? bytes[i] : joined->used;
            return mx_fail(MX_ERR_VALUE, "%s: %s: merge %zu: the vocabulary has no '%.*s'", s.name, s.part, index,
                           length < 60 ? (int)length : 60, what);
        }
    return MX_OK;
}

static mx_status read_merges(mx_tokenizer *t, const mx_value *merges, mx_source s)
{
    int32_t(*list)[3] = malloc((merges->count + 1) * sizeof *list);
    if (!list)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %zu merges", merges->count);
    mx_buffer joined = {0};
    mx_status status = MX_OK;
    for (size_t i = 0; i < merges->count && status == MX_OK; i++)
        status = read_merge(t, &merges->entries[i].value, i, s, &joined, list[i]);
    if (status == MX_OK)
        status = mx_bpe_set_merges(&t->bpe, (const int32_t(*)[3])list, (int64_t)merges->count);
    mx_buffer_free(&joined);
    free(list);
    return status;
}

/* ---- the model ---- */

/* Refuses a field that would change the result but is not supported, unless it is null, 0 or empty. */
static mx_status refuse_field(mx_source s, const mx_value *map, const char *key)
{
    const mx_value *value = mx_value_get(map, key);
    bool off = !value || value->kind == MX_NULL || (value->kind == MX_STRING && value->length == 0) ||
               (value->kind == MX_FLOAT && value->number == 0) || (value->kind == MX_INT && value->integer == 0);
    return off ? MX_OK : mx_fail(MX_ERR_VALUE, "%s: %s: '%s' is not supported", s.name, s.part, key);
}

static mx_status read_unknown(mx_tokenizer *t, const mx_value *model, mx_source s)
{
    const mx_value *unk = mx_value_get(model, "unk_token");
    t->bpe.unk = -1;
    if (!unk || unk->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field(s, model, "unk_token", MX_STRING, &unk));
    t->bpe.unk = mx_pieces_find(&t->vocabulary, unk->text, unk->length);
    if (t->bpe.unk < 0)
        return mx_fail(MX_ERR_VALUE, "%s: %s: the vocabulary has no unk_token '%.60s'", s.name, s.part, unk->text);
    return MX_OK;
}

static mx_status read_model(mx_tokenizer *t, const mx_value *root, const char *name)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    mx_source s = {name, "model"};
    const mx_value *model, *vocab, *merges, *type;
    MX_TRY(mx_field((mx_source){name, "tokenizer"}, root, "model", MX_MAP, &model));
    if (mx_value_get(model, "type") || !mx_value_get(model, "merges")) { /* older BPE files have no type */
        MX_TRY(mx_field(s, model, "type", MX_STRING, &type));
        if (strcmp(type->text, "BPE") != 0)
            return mx_fail(MX_ERR_VALUE, "%s: the model '%.60s' is not supported; only BPE is", name, type->text);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        MX_TRY(refuse_field(s, model, refused[i]));
    MX_TRY(mx_field(s, model, "vocab", MX_MAP, &vocab));
    MX_TRY(mx_field(s, model, "merges", MX_ARRAY, &merges));
    MX_TRY(mx_field_bool(s, model, "fuse_unk", false, &t->bpe.fuse_unk));
    MX_TRY(mx_field_bool(s, model, "byte_fallback", false, &t->bpe.byte_fallback));
    MX_TRY(mx_field_bool(s, model, "ignore_merges", false, &t->bpe.ignore_merges));
    MX_TRY(read_vocabulary(t, vocab, s));
    MX_TRY(read_merges(t, merges, s));
    return read_unknown(t, model, s);
}

/* ---- added tokens ---- */

static mx_status read_added(mx_tokenizer *t, const mx_value *value, size_t tokens, mx_source s, mx_added *out)
{
    const mx_value *content, *id;
    if (value->kind != MX_MAP)
        return mx_fail(MX_ERR_VALUE, "%s: %s: expected maps, got %s", s.name, s.part, mx_kind_name(value->kind));
    MX_TRY(mx_field(s, value, "content", MX_STRING, &content));
    MX_TRY(mx_field(s, value, "id", MX_INT, &id));
    MX_TRY(check_id(s, content->text, id, tokens));
    MX_TRY(mx_field_bool(s, value, "special", false, &out->special));
    MX_TRY(mx_field_bool(s, value, "normalized", !out->special, &out->normalized));
    MX_TRY(mx_field_bool(s, value, "lstrip", false, &out->lstrip));
    MX_TRY(mx_field_bool(s, value, "rstrip", false, &out->rstrip));
    MX_TRY(mx_field_bool(s, value, "single_word", false, &out->single_word));
    if (content->length == 0)
        return MX_OK; /* the reference ignores it */
    int32_t known = mx_pieces_find(&t->vocabulary, content->text, content->length);
    out->id = known >= 0 ? known : (int32_t)id->integer; /* as in the reference, the vocabulary's id wins */
    const mx_piece *taken = mx_pieces_get(&t->vocabulary, out->id);
    if (!taken)
        MX_TRY(mx_pieces_set(&t->vocabulary, out->id, content->text, content->length));
    else if ((size_t)taken->bytes != content->length ||
             memcmp(mx_piece_text(&t->vocabulary, taken), content->text, content->length) != 0)
        return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s' has the id %d, which '%.*s' has already", s.name, s.part,
                       content->text, out->id, taken->bytes < 60 ? taken->bytes : 60,
                       mx_piece_text(&t->vocabulary, taken));
    mx_piece *piece = &t->vocabulary.piece[out->id];
    piece->added = true;
    piece->special = piece->special || out->special;
    out->bytes = content->length;
    out->content = malloc(content->length + 1);
    if (!out->content)
        return mx_fail(MX_ERR_MEMORY, "out of memory for added tokens");
    memcpy(out->content, content->text, content->length + 1);
    return MX_OK;
}

/* A token that is searched for after normalization is normalized itself, and is decoded to its normalized text. */
static mx_status normalize_content(mx_tokenizer *t, mx_added *token)
{
    const char *text = token->content;
    size_t bytes = token->bytes;
    MX_TRY(mx_normalize(&t->norms, &text, &bytes));
    if (bytes == token->bytes && memcmp(text, token->content, bytes) == 0)
        return MX_OK;
    if (!mx_pieces_get(&t->renamed, token->id))
        MX_TRY(mx_pieces_set(&t->renamed, token->id, text, bytes));
    char *content = malloc(bytes + 1);
    if (!content)
        return mx_fail(MX_ERR_MEMORY, "out of memory for added tokens");
    if (bytes > 0)
        memcpy(content, text, bytes);
    content[bytes] = 0;
    free(token->content);
    token->content = content;
    token->bytes = bytes;
    return MX_OK;
}

/* Makes the set of tokens that are searched for before, or after, normalization. Special tokens come first, so they win
 * over equal ones. */
static mx_status make_set(mx_added *tokens, int count, bool normalized, mx_added_set *set)
{
    mx_added *chosen = malloc(((size_t)count + 1) * sizeof *chosen);
    if (!chosen)
        return mx_fail(MX_ERR_MEMORY, "out of memory for added tokens");
    int n = 0;
    for (int special = 1; special >= 0; special--)
        for (int i = 0; i < count; i++) {
            if (!tokens[i].content || tokens[i].special != special || tokens[i].normalized != normalized)
                continue;
            chosen[n] = tokens[i];
            chosen[n].order = n;
            tokens[i].content = NULL; /* now owned by the set */
            n++;
        }
    mx_status status = mx_added_set_make(set, chosen, n);
    free(chosen);
    return status;
}

static mx_status make_sets(mx_tokenizer *t, mx_added *tokens, int count)
{
    for (int i = 0; i < count; i++)
        if (tokens[i].content && tokens[i].normalized)
            MX_TRY(normalize_content(t, &tokens[i]));
    MX_TRY(make_set(tokens, count, false, &t->raw));
    return make_set(tokens, count, true, &t->normalized);
}

static mx_status read_added_tokens(mx_tokenizer *t, const mx_value *root, const char *name)
{
    mx_source s = {name, "added_tokens"};
    const mx_value *list = mx_value_get(root, "added_tokens");
    if (!list || list->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field(s, root, "added_tokens", MX_ARRAY, &list));
    int count = (int)list->count;
    mx_added *tokens = calloc(list->count + 1, sizeof *tokens);
    if (!tokens)
        return mx_fail(MX_ERR_MEMORY, "out of memory for added tokens");
    size_t all = (size_t)t->vocabulary.count + list->count;
    mx_status status = MX_OK;
    for (int i = 0; i < count && status == MX_OK; i++)
        status = read_added(t, &list->entries[i].value, all, s, &tokens[i]);
    if (status == MX_OK) {
        status = make_sets(t, tokens, count);
        if (status != MX_OK)
            (void)mx_context(status, "%s: %s", name, s.part);
    }
    for (int i = 0; i < count; i++)
        free(tokens[i].content);
    free(tokens);
    return status == MX_OK ? mx_pieces_index(&t->vocabulary) : status;
}

/* ---- the post-processor ---- */

/* Reads the id of a special token of the template, which must have exactly one. */
static mx_status template_id(mx_tokenizer *t, const mx_value *specials, const mx_value *token, mx_source s,
                             int32_t *out)
{
    const mx_value *id, *special, *ids;
    MX_TRY(mx_field(s, token, "id", MX_STRING, &id));
    MX_TRY(mx_field(s, specials, id->text, MX_MAP, &special));
    MX_TRY(mx_field(s, special, "ids", MX_ARRAY, &ids));
    const mx_value *first = ids->count == 1 ? &ids->entries[0].value : NULL;
    if (!first || first->kind != MX_INT || !mx_pieces_get(&t->vocabulary, first->integer))
        return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s': expected ids: [ID] with one id of the vocabulary", s.name,
                       s.part, id->text);
    *out = (int32_t)first->integer;
    return MX_OK;
}

static mx_status read_template(mx_tokenizer *t, const mx_value *value, mx_source s)
{
    const mx_value *single, *specials;
    bool text = false;
    MX_TRY(mx_field(s, value, "single", MX_ARRAY, &single));
    MX_TRY(mx_field(s, value, "special_tokens", MX_MAP, &specials));
    for (size_t i = 0; i < single->count; i++) {
        const mx_value *part = &single->entries[i].value, *token = mx_value_get(part, "SpecialToken");
        int32_t *to = text ? &t->eos : &t->bos;
        if (mx_value_get(part, "Sequence") && !text) {
            text = true;
            continue;
        }
        if (!token || *to >= 0)
            return mx_fail(MX_ERR_VALUE, "%s: %s: the template has more than one text with a token before and after it",
                           s.name, s.part);
        MX_TRY(template_id(t, specials, token, s, to));
    }
    if (!text)
        return mx_fail(MX_ERR_VALUE, "%s: %s: the template has no Sequence", s.name, s.part);
    return MX_OK;
}

static mx_status read_post_processor(mx_tokenizer *t, const mx_value *value, mx_source s)
{
    const char *type = "";
    if (!value || value->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field_type(s, value, &type));
    if (strcmp(type, "Sequence") == 0)
        return mx_read_sequence(t, value, "processors", s, read_post_processor);
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, value, s);
    if (strcmp(type, "ByteLevel") == 0) /* it changes only offsets, which are not used */
        return MX_OK;
    return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s' is not supported; what is: TemplateProcessing, ByteLevel, Sequence",
                   s.name, s.part, type);
}

mx_status mx_tokenizer_read(mx_tokenizer *t, const mx_value *root, const char *name)
{
    if (root->kind != MX_MAP)
        return mx_fail(MX_ERR_VALUE, "%s: expected a tokenizer.json, a map, got %s", name, mx_kind_name(root->kind));
    MX_TRY(mx_read_normalizer(t, mx_value_get(root, "normalizer"), (mx_source){name, "normalizer"}));
    MX_TRY(mx_norms_prepare(&t->norms));
    MX_TRY(mx_read_pre_tokenizer(t, mx_value_get(root, "pre_tokenizer"), (mx_source){name, "pre_tokenizer"}));
    MX_TRY(mx_read_decoder(t, mx_value_get(root, "decoder"), (mx_source){name, "decoder"}));
    MX_TRY(read_model(t, root, name));
    MX_TRY(read_added_tokens(t, root, name));
    MX_TRY(read_post_processor(t, mx_value_get(root, "post_processor"), (mx_source){name, "post_processor"}));
    mx_status status = mx_bpe_prepare(t);
    return status == MX_OK ? mx_decoder_prepare(t) : mx_context(status, "%s", name);
}
