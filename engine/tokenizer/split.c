#include "tokenizer/internal.h"

#include <string.h>

/* ---- splits: matches and the ranges between them, joined or dropped as the behaviour says ---- */

typedef struct range {
    size_t start, end;
    bool match;
} range;

typedef struct cutter {
    mx_tokenizer *tokenizer;
    const mx_step *step;
    int next_step;
    const char *text;
    bool at_start;
    mx_ids *ids;
    bool holds; /* `held` waits for the next range */
    bool last;  /* whether the range before was a match */
    range held;
} cutter;

static mx_status put_range(cutter *c, range r)
{
    if (r.start == r.end)
        return MX_OK;
    return mx_split(c->tokenizer, c->next_step, c->text + r.start, r.end - r.start, c->at_start && r.start == 0,
                    c->ids);
}

static mx_status flush(cutter *c)
{
    if (!c->holds)
        return MX_OK;
    c->holds = false;
    return put_range(c, c->held);
}

static mx_status hold(cutter *c, range r)
{
    MX_TRY(flush(c));
    c->held = r;
    c->holds = true;
    return MX_OK;
}

/* Holds a match back and joins it to the next range, unless that is a match too. */
static mx_status merge_with_next(cutter *c, range r)
{
    if (r.match)
        return hold(c, r);
    if (c->holds)
        r.start = c->held.start;
    c->holds = false;
    return put_range(c, r);
}

static mx_status take_range(cutter *c, range r)
{
    r.match = r.match != c->step->invert;
    bool last = c->last;
    c->last = r.match;
    switch (c->step->behavior) {
    case MX_ISOLATED:
        return put_range(c, r);
    case MX_REMOVED:
        return r.match ? MX_OK : put_range(c, r);
    case MX_MERGED_WITH_NEXT:
        return merge_with_next(c, r);
    default:
        break;
    }
    bool joins = c->step->behavior == MX_CONTIGUOUS ? r.match == last : r.match && !last;
    if (!joins || !c->holds)
        return hold(c, r);
    c->held.end = r.end;
    return MX_OK;
}

static mx_status run_split(mx_tokenizer *t, int index, const char *text, size_t bytes, bool at_start, mx_ids *ids)
{
    const mx_step *step = &t->step[index];
    cutter c = {.tokenizer = t, .step = step, .next_step = index + 1, .text = text, .at_start = at_start, .ids = ids};
    mx_search search = {.text = text, .bytes = bytes};
    size_t done = 0;
    for (;;) {
        range r = {.match = true};
        bool found;
        MX_TRY(mx_pattern_next(step->pattern, &search, &r.start, &r.end, &found));
        if (!found)
            break;
        if (r.start > done)
            MX_TRY(take_range(&c, (range){done, r.start, false}));
        MX_TRY(take_range(&c, r));
        done = r.end;
    }
    if (done < bytes)
        MX_TRY(take_range(&c, (range){done, bytes, false}));
    return flush(&c);
}

/* ---- the other steps ---- */

static mx_status run_prefix_space(mx_tokenizer *t, int index, const char *text, size_t bytes, bool at_start,
                                  mx_ids *ids)
{
    mx_step *step = &t->step[index];
    if (text[0] == ' ')
        return mx_split(t, index + 1, text, bytes, at_start, ids);
    step->buffer.used = 0;
    MX_TRY(mx_buffer_put(&step->buffer, " ", 1));
    MX_TRY(mx_buffer_put(&step->buffer, text, bytes));
    return mx_split(t, index + 1, step->buffer.data, step->buffer.used, at_start, ids);
}

/* Replaces spaces by marks, and prepends a mark. */
static mx_status run_metaspace(mx_tokenizer *t, int index, const char *text, size_t bytes, bool at_start, mx_ids *ids)
{
    mx_step *step = &t->step[index];
    size_t mark_bytes = (size_t)step->mark_bytes;
    bool has_mark = text[0] == ' ' || (bytes >= mark_bytes && memcmp(text, step->mark, mark_bytes) == 0);
    bool wants_mark = step->prepend == MX_PREPEND_ALWAYS || (step->prepend == MX_PREPEND_FIRST && at_start);
    step->buffer.used = 0;
    if (wants_mark && !has_mark)
        MX_TRY(mx_buffer_put(&step->buffer, step->mark, mark_bytes));
    for (size_t done = 0; done < bytes;) {
        const char *space = memchr(text + done, ' ', bytes - done);
        size_t end = space ? (size_t)(space - text) : bytes;
        MX_TRY(mx_buffer_put(&step->buffer, text + done, end - done));
        if (space)
            MX_TRY(mx_buffer_put(&step->buffer, step->mark, mark_bytes));
        done = end + 1;
    }
    return mx_split(t, index + 1, step->buffer.data, step->buffer.used, at_start, ids);
}

mx_status mx_split(mx_tokenizer *t, int step, const char *text, size_t bytes, bool at_start, mx_ids *ids)
{
    if (bytes == 0)
        return MX_OK;
    if (step == t->n_steps)
        return mx_bpe_encode(t, text, bytes, ids);
    switch (t->step[step].kind) {
    case MX_STEP_SPLIT:
        return run_split(t, step, text, bytes, at_start, ids);
    case MX_STEP_PREFIX_SPACE:
        return run_prefix_space(t, step, text, bytes, at_start, ids);
    default:
        return run_metaspace(t, step, text, bytes, at_start, ids);
    }
}
