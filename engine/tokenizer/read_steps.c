/* Reads tokenizer.json: the normalizer, the pre-tokenizer, the decoder. */
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static mx_status refuse_type(mx_source s, const char *type, const char *supported)
{
    return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s' is not supported; what is: %s", s.name, s.part, type, supported);
}

static mx_status too_many(mx_source s)
{
    return mx_fail(MX_ERR_VALUE, "%s: %s: more than %d steps are not supported", s.name, s.part, MX_STEPS);
}

/* Reads a string of 1 to `limit` bytes, without zero bytes. */
static mx_status field_text(mx_source s, const mx_value *map, const char *key, size_t limit, const mx_value **out)
{
    MX_TRY(mx_field(s, map, key, MX_STRING, out));
    if ((*out)->length == 0 || (*out)->length > limit || memchr((*out)->text, 0, (*out)->length))
        return mx_fail(MX_ERR_VALUE, "%s: %s: %s: expected 1 to %zu bytes without a zero byte, got %zu bytes", s.name,
                       s.part, key, limit, (*out)->length);
    return MX_OK;
}

static mx_status copy_text(const mx_value *text, char **out)
{
    *out = malloc(text->length + 1);
    if (!*out)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tokenizer");
    memcpy(*out, text->text, text->length + 1);
    return MX_OK;
}

/* {"pattern": {"Regex": ...}} or {"pattern": {"String": ...}} */
static mx_status read_pattern(mx_source s, const mx_value *map, const mx_value **text, bool *literal)
{
    const mx_value *pattern;
    MX_TRY(mx_field(s, map, "pattern", MX_MAP, &pattern));
    *literal = mx_value_get(pattern, "String") != NULL;
    return mx_field(s, pattern, *literal ? "String" : "Regex", MX_STRING, text);
}

static mx_status compile_pattern(mx_source s, const mx_value *map, mx_pattern **out)
{
    const mx_value *text;
    bool literal;
    MX_TRY(read_pattern(s, map, &text, &literal));
    mx_status status = mx_pattern_compile(text->text, text->length, literal, out);
    return status == MX_OK ? status : mx_context(status, "%s: %s", s.name, s.part);
}

/* ---- the normalizer ---- */

static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* in the order of mx_norm_kind */

static mx_status read_norm(const mx_value *value, const char *type, mx_source s, mx_norm *step)
{
    static const char supported[] = "NFC, NFD, NFKC, NFKD, Replace, Prepend, Sequence";
    for (int i = 0; i < 4; i++)
        if (strcmp(type, forms[i]) == 0) {
            step->kind = (mx_norm_kind)i;
            return MX_OK;
        }
    bool replace = strcmp(type, "Replace") == 0;
    if (!replace && strcmp(type, "Prepend") != 0)
        return refuse_type(s, type, supported);
    const mx_value *content;
    step->kind = replace ? MX_NORM_REPLACE : MX_NORM_PREPEND;
    if (replace)
        MX_TRY(compile_pattern(s, value, &step->pattern));
    MX_TRY(mx_field(s, value, replace ? "content" : "prepend", MX_STRING, &content));
    if (content->length > 64)
        return mx_fail(MX_ERR_VALUE, "%s: %s: %s with %zu bytes; at most 64 are supported", s.name, s.part, type,
                       content->length);
    step->bytes = content->length;
    return copy_text(content, &step->content);
}

mx_status mx_read_normalizer(mx_tokenizer *t, const mx_value *value, mx_source s)
{
    const char *type = "";
    if (!value || value->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field_type(s, value, &type));
    if (strcmp(type, "Sequence") == 0)
        return mx_read_sequence(t, value, "normalizers", s, mx_read_normalizer);
    mx_norms *norms = &t->norms;
    if (norms->count == MX_STEPS)
        return too_many(s);
    if (!norms->step)
        norms->step = calloc(MX_STEPS, sizeof *norms->step);
    if (!norms->step)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tokenizer");
    return read_norm(value, type, s, &norms->step[norms->count++]);
}

/* ---- the pre-tokenizer ---- */

static const char GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* NULL if there are too many steps. */
static mx_step *new_step(mx_tokenizer *t, mx_step_kind kind)
{
    if (t->n_steps == MX_STEPS)
        return NULL;
    mx_step *step = &t->step[t->n_steps++];
    *step = (mx_step){.kind = kind};
    return step;
}

static mx_status split_at_set(mx_tokenizer *t, mx_source s, const char *set, mx_behavior behavior)
{
    mx_step *step = new_step(t, MX_STEP_SPLIT);
    if (!step)
        return too_many(s);
    step->behavior = behavior;
    return mx_pattern_of_set(set, false, &step->pattern);
}

static mx_status read_behavior(mx_source s, const mx_value *map, mx_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const mx_value *name;
    MX_TRY(mx_field(s, map, "behavior", MX_STRING, &name));
    for (int i = 0; i < 5; i++)
        if (strcmp(name->text, names[i]) == 0) {
            *out = (mx_behavior)i;
            return MX_OK;
        }
    return mx_fail(
        MX_ERR_VALUE,
        "%s: %s: behavior '%.40s'; expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
        s.name, s.part, name->text);
}

static mx_status read_byte_level(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    bool prefix, regex;
    MX_TRY(mx_field_bool(s, map, "add_prefix_space", true, &prefix));
    MX_TRY(mx_field_bool(s, map, "use_regex", true, &regex));
    t->bpe.byte_level = true;
    if (prefix && !new_step(t, MX_STEP_PREFIX_SPACE))
        return too_many(s);
    if (!regex)
        return MX_OK;
    mx_step *step = new_step(t, MX_STEP_SPLIT);
    if (!step)
        return too_many(s);
    return mx_pattern_compile(GPT2, strlen(GPT2), false, &step->pattern); /* behavior: MX_ISOLATED, which is 0 */
}

static mx_status read_split(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    mx_step *step = new_step(t, MX_STEP_SPLIT);
    if (!step)
        return too_many(s);
    MX_TRY(read_behavior(s, map, &step->behavior));
    MX_TRY(mx_field_bool(s, map, "invert", false, &step->invert));
    return compile_pattern(s, map, &step->pattern);
}

static mx_status read_digits(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    bool individual;
    MX_TRY(mx_field_bool(s, map, "individual_digits", false, &individual));
    return split_at_set(t, s, "Digits", individual ? MX_ISOLATED : MX_CONTIGUOUS);
}

static mx_status read_punctuation(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    mx_behavior behavior = MX_ISOLATED;
    if (mx_value_get(map, "behavior"))
        MX_TRY(read_behavior(s, map, &behavior));
    return split_at_set(t, s, "Punctuation", behavior);
}

/* Reads Metaspace's character, and when it is prepended: prepend_scheme, or add_prefix_space in older files. */
static mx_status read_mark(mx_source s, const mx_value *map, char mark[5], mx_prepend *prepend)
{
    static const char *const names[] = {"never", "first", "always"};
    const mx_value *text;
    bool prefix;
    int length;
    MX_TRY(field_text(s, map, "replacement", 4, &text));
    if (mx_utf8_read(text->text, text->length, &length) < 0 || (size_t)length != text->length)
        return mx_fail(MX_ERR_VALUE, "%s: %s: replacement: expected one character, got '%s'", s.name, s.part,
                       text->text);
    memcpy(mark, text->text, text->length + 1);
    MX_TRY(mx_field_bool(s, map, "add_prefix_space", true, &prefix));
    *prepend = prefix ? MX_PREPEND_ALWAYS : MX_PREPEND_NEVER;
    if (!mx_value_get(map, "prepend_scheme"))
        return MX_OK;
    MX_TRY(mx_field(s, map, "prepend_scheme", MX_STRING, &text));
    for (int i = 0; i < 3; i++)
        if (strcmp(text->text, names[i]) == 0) {
            *prepend = prefix ? (mx_prepend)i : MX_PREPEND_NEVER;
            return MX_OK;
        }
    return mx_fail(MX_ERR_VALUE, "%s: %s: prepend_scheme '%.40s'; expected always, first or never", s.name, s.part,
                   text->text);
}

static mx_status read_metaspace(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    bool split;
    char mark[5];
    mx_step *step = new_step(t, MX_STEP_METASPACE);
    if (!step)
        return too_many(s);
    MX_TRY(read_mark(s, map, mark, &step->prepend));
    step->mark_bytes = (int)strlen(mark);
    memcpy(step->mark, mark, 4);
    MX_TRY(mx_field_bool(s, map, "split", true, &split));
    if (!split)
        return MX_OK;
    step = new_step(t, MX_STEP_SPLIT);
    if (!step)
        return too_many(s);
    step->behavior = MX_MERGED_WITH_NEXT;
    return mx_pattern_compile(mark, strlen(mark), true, &step->pattern);
}

mx_status mx_read_pre_tokenizer(mx_tokenizer *t, const mx_value *value, mx_source s)
{
    static const struct {
        const char *type;
        mx_read_part read;
    } parts[] = {{"ByteLevel", read_byte_level},
                 {"Split", read_split},
                 {"Digits", read_digits},
                 {"Punctuation", read_punctuation},
                 {"Metaspace", read_metaspace}};
    const char *type = "";
    if (!value || value->kind == MX_NULL)
        return MX_OK;
    MX_TRY(mx_field_type(s, value, &type));
    if (strcmp(type, "Sequence") == 0)
        return mx_read_sequence(t, value, "pretokenizers", s, mx_read_pre_tokenizer);
    if (t->bpe.byte_level)
        return mx_fail(MX_ERR_VALUE,
                       "%s: %s: '%.60s' after ByteLevel is not supported: ByteLevel must be the last step", s.name,
                       s.part, type);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(type, parts[i].type) == 0)
            return parts[i].read(t, value, s);
    return refuse_type(s, type, "ByteLevel, Split, Digits, Punctuation, Metaspace, Sequence");
}

/* ---- the decoder ---- */

static mx_status read_replace_decoder(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    mx_decoder *d = &t->decoder[t->n_decoders - 1];
    const mx_value *text, *content;
    bool literal;
    MX_TRY(read_pattern(s, map, &text, &literal));
    MX_TRY(mx_field(s, map, "content", MX_STRING, &content));
    if (!literal || text->length == 0 || strlen(text->text) != text->length || content->length > 64 ||
        strlen(content->text) != content->length)
        return mx_fail(MX_ERR_VALUE,
                       "%s: %s: Replace: only a String pattern with a content of up to 64 bytes is supported", s.name,
                       s.part);
    d->kind = MX_DECODE_REPLACE;
    MX_TRY(copy_text(text, &d->pattern));
    return copy_text(content, &d->content);
}

static mx_status read_metaspace_decoder(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    mx_decoder *d = &t->decoder[t->n_decoders - 1];
    mx_prepend prepend;
    char mark[5];
    const mx_value *text;
    MX_TRY(read_mark(s, map, mark, &prepend));
    MX_TRY(mx_field(s, map, "replacement", MX_STRING, &text));
    d->kind = MX_DECODE_METASPACE;
    d->prepended = prepend != MX_PREPEND_NEVER;
    return copy_text(text, &d->pattern);
}

/* Reads a Strip. After Fuse it strips the whole text; stripping the end is then refused, because the end is not known
 * while the text is streamed. */
static mx_status read_strip_decoder(mx_tokenizer *t, const mx_value *map, mx_source s)
{
    mx_decoder *d = &t->decoder[t->n_decoders - 1];
    const mx_value *text, *start, *stop;
    MX_TRY(field_text(s, map, "content", 4, &text));
    MX_TRY(mx_field(s, map, "start", MX_INT, &start));
    MX_TRY(mx_field(s, map, "stop", MX_INT, &stop));
    if (start->integer < 0 || start->integer > 1024 || stop->integer < 0 || stop->integer > 1024)
        return mx_fail(MX_ERR_VALUE, "%s: %s: Strip: expected start and stop from 0 to 1024", s.name, s.part);
    if (t->fused && (stop->integer != 0 || text->length != 1))
        return mx_fail(MX_ERR_VALUE,
                       "%s: %s: Strip after Fuse is supported for one character of ASCII at the start (stop 0) only",
                       s.name, s.part);
    d->kind = t->fused ? MX_DECODE_STRIP_START : MX_DECODE_STRIP;
    d->start = (int)start->integer;
    d->stop = (int)stop->integer;
    return copy_text(text, &d->pattern);
}

static mx_status read_simple_decoder(mx_tokenizer *t, const char *type, mx_source s)
{
    mx_decoder *d = &t->decoder[t->n_decoders - 1];
    d->kind = MX_DECODE_BYTE_LEVEL;
    if (strcmp(type, "ByteFallback") == 0)
        d->kind = MX_DECODE_BYTE_FALLBACK;
    else if (strcmp(type, "ByteLevel") != 0)
        return refuse_type(s, type, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence");
    return MX_OK;
}

/* Checks that the decoded text of a token does not depend on its neighbours: after ByteFallback, ByteLevel and Fuse,
 * which join tokens, only a Strip of the start of the text may follow. */
static mx_status check_order(mx_tokenizer *t, const char *type, mx_source s)
{
    int last = t->n_decoders > 0 ? (int)t->decoder[t->n_decoders - 1].kind : -1;
    bool strip = strcmp(type, "Strip") == 0;
    if (t->fused ? !strip || last == MX_DECODE_STRIP_START : last == MX_DECODE_BYTE_FALLBACK)
        return mx_fail(MX_ERR_VALUE, "%s: %s: '%.60s' after %s is not supported", s.name, s.part, type,
                       !t->fused                       ? "ByteFallback"
                       : last == MX_DECODE_STRIP_START ? "Fuse and Strip"
                                                       : "Fuse or ByteLevel");
    return t->n_decoders < MX_STEPS ? MX_OK : too_many(s);
}

mx_status mx_read_decoder(mx_tokenizer *t, const mx_value *value, mx_source s)
{
    static const struct {
        const char *type;
        mx_read_part read;
    } parts[] = {
        {"Replace", read_replace_decoder}, {"Metaspace", read_metaspace_decoder}, {"Strip", read_strip_decoder}};
    const char *type = "";
    if (!value || value->kind == MX_NULL) {
        t->spaced = true;
        return MX_OK;
    }
    MX_TRY(mx_field_type(s, value, &type));
    if (strcmp(type, "Sequence") == 0)
        return mx_read_sequence(t, value, "decoders", s, mx_read_decoder);
    if (strcmp(type, "Fuse") == 0) {
        t->fused = true;
        return MX_OK;
    }
    MX_TRY(check_order(t, type, s));
    t->decoder[t->n_decoders++] = (mx_decoder){0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(type, parts[i].type) == 0)
            return parts[i].read(t, value, s);
    MX_TRY(read_simple_decoder(t, type, s));
    t->fused = t->fused || t->decoder[t->n_decoders - 1].kind == MX_DECODE_BYTE_LEVEL;
    return MX_OK;
}
