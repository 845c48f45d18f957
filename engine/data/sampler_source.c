#include "data/sampler_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DESCRIBED = 4 }; /* documents in a description */

/* ---- the documents in the epoch's order ---- */

static int64_t document_at(const mx_sample_source *s, int64_t place)
{
    return (int64_t)mx_permutation_at(&s->shuffled, (uint64_t)place);
}

static int64_t length_of(const mx_sample_source *s, int64_t document)
{
    return mx_store_document(s->store, document + 1) - mx_store_document(s->store, document);
}

/* What the index counts for a document: its tokens if packed, its sequences if padded. */
static int64_t measure(const mx_sample_source *s, const mx_sampler_options *o, int64_t document)
{
    int64_t tokens = length_of(s, document);
    return o->packing ? tokens : tokens < 2 ? 0 : (tokens - 2) / o->length + 1;
}

static int64_t build_index(mx_sample_source *s, const mx_sampler_options *o)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < s->documents; k++) {
        if (k % MX_INDEX_STRIDE == 0)
            s->index[k / MX_INDEX_STRIDE] = sum;
        sum += measure(s, o, document_at(s, k));
    }
    return sum;
}

/* A document in the order, and an offset in it. */
typedef struct spot {
    int64_t place, document, into;
} spot;

/* Finds the document and the offset in it at the running sum `at`, which is below the total. */
static spot find(const mx_sample_source *s, const mx_sampler_options *o, int64_t at)
{
    int64_t low = 0, high = (s->documents - 1) / MX_INDEX_STRIDE;
    while (low < high) { /* finds the last entry that is not above `at` */
        int64_t middle = (low + high + 1) / 2;
        if (s->index[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    spot found = {.place = low * MX_INDEX_STRIDE, .into = at - s->index[low]};
    found.document = document_at(s, found.place);
    for (int64_t m; found.into >= (m = measure(s, o, found.document));) {
        found.into -= m;
        found.document = document_at(s, ++found.place);
    }
    return found;
}

/* ---- epochs ---- */

static uint64_t epoch_seed(const mx_sample_source *s, int64_t epoch, uint64_t which)
{
    return mx_mix64(s->seed + mx_mix64((uint64_t)epoch * 2 + which + 1));
}

static void start_epoch(mx_sample_source *s, const mx_sampler_options *o, int64_t epoch)
{
    if (epoch == s->epoch)
        return;
    s->order = mx_permutation_new((uint64_t)s->samples, epoch_seed(s, epoch, 0), o->shuffle);
    if (s->store && o->packing) {
        s->shuffled = mx_permutation_new((uint64_t)s->documents, epoch_seed(s, epoch, 1), o->shuffle);
        build_index(s, o);
    }
    s->epoch = epoch;
}

/* The index of sample `number` in its epoch before the epoch's samples are shuffled. */
static int64_t sample_of(mx_sample_source *s, const mx_sampler_options *o, int64_t number)
{
    start_epoch(s, o, number / s->samples);
    return (int64_t)mx_permutation_at(&s->order, (uint64_t)(number % s->samples));
}

static mx_status start_documents(mx_sample_source *s, const mx_sampler_options *o)
{
    const mx_store_about *about = mx_store_get_about(s->store);
    const char *path = mx_tokens_path(s->tokens);
    if (about->vocab_size > o->vocab_size)
        return mx_fail(MX_ERR_VALUE,
                       "'%s' was made for a vocabulary of %lld, and the model's is %lld: set vocab_size=%lld", path,
                       (long long)about->vocab_size, (long long)o->vocab_size, (long long)about->vocab_size);
    s->documents = about->documents;
    s->index = malloc((size_t)((s->documents - 1) / MX_INDEX_STRIDE + 1) * sizeof *s->index);
    if (!s->index)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for an index of its documents", path);
    s->shuffled = mx_permutation_new((uint64_t)s->documents, 0, false);
    if (!o->packing)
        s->samples = build_index(s, o);
    for (int64_t d = 0; d < s->documents; d++)
        if (length_of(s, d) > 1)
            return MX_OK;
    return mx_fail(MX_ERR_VALUE, "'%s' has no document of two tokens or more: nothing in it is a target", path);
}

mx_status mx_sample_source_start(mx_sample_source *s, const mx_sampler_options *o, int i)
{
    int64_t tokens = mx_tokens_count(s->tokens);
    s->epoch = -1;
    s->seed = mx_mix64(o->seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
    s->store = mx_tokens_store(s->tokens);
    s->samples = (tokens - 1) / o->length;
    if (s->store)
        MX_TRY(start_documents(s, o));
    if (s->samples < 1)
        return mx_fail(MX_ERR_VALUE, "'%s' has %lld tokens; one sequence and its targets take %lld",
                       mx_tokens_path(s->tokens), (long long)tokens, (long long)o->length + 1);
    return MX_OK;
}

void mx_sample_source_stop(mx_sample_source *s)
{
    mx_tokens_close(s->tokens);
    free(s->index);
}

/* ---- samples ---- */

/* Reads tokens [start, start + count) of the file and checks them. */
static mx_status read(mx_sample_source *s, const mx_sampler_options *o, int64_t start, int64_t count, int32_t *to)
{
    MX_TRY(mx_tokens_read(s->tokens, start, count, to));
    for (int64_t i = 0; i < count; i++)
        if (to[i] < 0 || to[i] >= o->vocab_size)
            return mx_fail(
                MX_ERR_VALUE,
                "'%s' has the token id %d at position %lld, outside the vocabulary of %lld: set vocab_size to "
                "that of its tokenizer, or make the file again",
                mx_tokens_path(s->tokens), to[i], (long long)(start + i), (long long)o->vocab_size);
    return MX_OK;
}

/* Sets tokens and targets from `row`, as one document in which every target counts. */
static void set_plain(const int32_t *row, int64_t count, const mx_samples *to)
{
    memcpy(to->tokens, row, (size_t)count * sizeof *row);
    memcpy(to->targets, row + 1, (size_t)count * sizeof *row);
    memset(to->mask, 1, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        to->segments[i] = 1;
        to->positions[i] = (int32_t)i;
    }
}

static mx_status fill_padded(mx_sample_source *s, const mx_sampler_options *o, int64_t sample, int32_t *row,
                             const mx_samples *to)
{
    spot at = find(s, o, sample);
    int64_t start = at.into * o->length, targets = length_of(s, at.document) - 1 - start;
    int64_t count = targets < o->length ? targets : o->length, rest = o->length - count;
    MX_TRY(read(s, o, mx_store_document(s->store, at.document) + start, count + 1, row));
    set_plain(row, count, to);
    memset(to->tokens + count, 0, (size_t)rest * sizeof *to->tokens);
    memset(to->targets + count, 0, (size_t)rest * sizeof *to->targets);
    memset(to->segments + count, 0, (size_t)rest * sizeof *to->segments);
    memset(to->positions + count, 0, (size_t)rest * sizeof *to->positions);
    memset(to->mask + count, 0, (size_t)rest);
    return MX_OK;
}

/* Sets segment, positions and mask of tokens [i, i + count), which are of one document; `first`: they begin it. */
static void set_piece(const mx_samples *to, int64_t length, int64_t i, int64_t count, int32_t segment, bool first)
{
    if (first && i > 0)
        to->mask[i - 1] = 0;
    for (int64_t k = 0; k < count && i + k < length; k++) {
        to->segments[i + k] = segment;
        to->positions[i + k] = (int32_t)k;
    }
}

static mx_status fill_packed(mx_sample_source *s, const mx_sampler_options *o, int64_t sample, int32_t *row,
                             const mx_samples *to)
{
    spot at = find(s, o, sample * o->length);
    int32_t segment = 0;
    memset(to->mask, 1, (size_t)o->length);
    for (int64_t i = 0; i <= o->length;) {
        int64_t left = length_of(s, at.document) - at.into, room = o->length + 1 - i;
        int64_t count = left < room ? left : room;
        if (count > 0) {
            MX_TRY(read(s, o, mx_store_document(s->store, at.document) + at.into, count, row + i));
            set_piece(to, o->length, i, count, ++segment, at.into == 0);
            i += count;
        }
        if (i <= o->length)
            at = (spot){.place = at.place + 1, .document = document_at(s, at.place + 1)};
    }
    memcpy(to->tokens, row, (size_t)o->length * sizeof *row);
    memcpy(to->targets, row + 1, (size_t)o->length * sizeof *row);
    return MX_OK;
}

mx_status mx_sample_source_fill(mx_sample_source *s, const mx_sampler_options *o, int64_t number, int32_t *scratch,
                                const mx_samples *row)
{
    int64_t sample = sample_of(s, o, number);
    if (s->store)
        return (o->packing ? fill_packed : fill_padded)(s, o, sample, scratch, row);
    MX_TRY(read(s, o, sample * o->length, o->length + 1, scratch));
    set_plain(scratch, o->length, row);
    return MX_OK;
}

/* ---- describing ---- */

static void describe_packed(const mx_sample_source *s, const mx_sampler_options *o, int64_t sample, char *text,
                            size_t room)
{
    spot at = find(s, o, sample * o->length);
    int64_t documents = 0, left = o->length + 1;
    size_t n = (size_t)snprintf(text, room, " documents");
    for (; left > 0; at = (spot){.place = at.place + 1, .document = document_at(s, at.place + 1)}) {
        int64_t tokens = length_of(s, at.document) - at.into;
        left -= tokens;
        if (tokens > 0 && documents++ < MOST_DESCRIBED && n < room)
            n += (size_t)snprintf(text + n, room - n, "%s %lld", documents > 1 ? "," : "", (long long)at.document);
        if (left <= 0)
            break;
    }
    if (documents > MOST_DESCRIBED && n < room)
        snprintf(text + n, room - n, " and %lld more", (long long)documents - MOST_DESCRIBED);
}

mx_status mx_sample_source_describe(mx_sample_source *s, const mx_sampler_options *o, int64_t number, char *text,
                                    size_t room)
{
    int64_t sample = sample_of(s, o, number);
    size_t n = (size_t)snprintf(text, room, "%s epoch %lld", mx_tokens_path(s->tokens), (long long)s->epoch);
    if (n >= room)
        return MX_OK;
    if (!s->store) {
        snprintf(text + n, room - n, " tokens %lld to %lld", (long long)(sample * o->length),
                 (long long)((sample + 1) * o->length));
    } else if (o->packing) {
        describe_packed(s, o, sample, text + n, room - n);
    } else {
        spot at = find(s, o, sample);
        snprintf(text + n, room - n, " document %lld from token %lld on", (long long)at.document,
                 (long long)(at.into * o->length));
    }
    return MX_OK;
}
