#include "data/sampler.h"

#include "data/permutation.h"
#include "data/sampler_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One position of a period: its source, and the number of earlier samples of that source in the period. */
typedef struct turn {
    int32_t source, before;
} turn;

struct mx_sampler {
    mx_sampler_options options;
    mx_sample_source *sources;
    int64_t *weights;
    int count;
    turn *turns; /* the positions of a period */
    int64_t period;
    int32_t *row; /* length + 1 tokens */
};

/* ---- making ---- */

/* Gives each position to the source that is furthest behind its share. */
static void fill_turns(mx_sampler *s, int64_t *given)
{
    for (int64_t t = 0; t < s->period; t++) {
        int best = 0;
        for (int i = 1; i < s->count; i++)
            if (s->weights[i] * (t + 1) - given[i] * s->period > s->weights[best] * (t + 1) - given[best] * s->period)
                best = i;
        s->turns[t] = (turn){best, (int32_t)given[best]++};
    }
}

static mx_status make_turns(mx_sampler *s)
{
    double sum = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->weights[i] < 1)
            return mx_fail(MX_ERR_VALUE, "weight %lld of a source: expected 1 or more", (long long)s->weights[i]);
        sum += (double)s->weights[i];
    }
    if (sum > MX_SAMPLER_PERIOD)
        return mx_fail(MX_ERR_VALUE,
                       "the weights of the sources are too fine: in whole numbers their sum is %.0f, expected at most "
                       "%d",
                       sum, MX_SAMPLER_PERIOD);
    s->period = (int64_t)sum;
    s->turns = malloc((size_t)s->period * sizeof *s->turns);
    int64_t *given = calloc((size_t)s->count, sizeof *given);
    if (s->turns && given)
        fill_turns(s, given);
    free(given);
    return s->turns && given ? MX_OK : mx_fail(MX_ERR_MEMORY, "out of memory for the order of the sources");
}

static mx_status set_up(mx_sampler *s, const int64_t *weights)
{
    const mx_sampler_options *o = &s->options;
    if (o->length < 1 || o->vocab_size < 1)
        return mx_fail(MX_ERR_VALUE, "sequences of %lld tokens from a vocabulary of %lld", (long long)o->length,
                       (long long)o->vocab_size);
    s->weights = malloc((size_t)s->count * sizeof *s->weights);
    s->row = malloc((size_t)(o->length + 1) * sizeof *s->row);
    if (!s->weights || !s->row)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a sequence of %lld tokens", (long long)o->length);
    memcpy(s->weights, weights, (size_t)s->count * sizeof *weights);
    MX_TRY(make_turns(s));
    for (int i = 0; i < s->count; i++)
        MX_TRY(mx_sample_source_start(&s->sources[i], o, i));
    return MX_OK;
}

mx_status mx_sampler_new(mx_tokens **sources, const int64_t *weights, int count, const mx_sampler_options *options,
                         mx_sampler **out)
{
    *out = NULL;
    mx_sampler *s = calloc(1, sizeof *s);
    if (s)
        s->sources = calloc((size_t)count, sizeof *s->sources);
    if (!s || !s->sources) {
        free(s);
        for (int i = 0; i < count; i++)
            mx_tokens_close(sources[i]);
        return mx_fail(MX_ERR_MEMORY, "out of memory for %d sources", count);
    }
    s->options = *options;
    s->count = count;
    for (int i = 0; i < count; i++)
        s->sources[i].tokens = sources[i];
    mx_status status = set_up(s, weights);
    if (status != MX_OK) {
        mx_sampler_free(s);
        return status;
    }
    *out = s;
    return MX_OK;
}

void mx_sampler_free(mx_sampler *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->count; i++)
        mx_sample_source_stop(&s->sources[i]);
    free(s->sources);
    free(s->weights);
    free(s->turns);
    free(s->row);
    free(s);
}

/* ---- queries ---- */

bool mx_sampler_has_documents(const mx_sampler *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->sources[i].store)
            return true;
    return false;
}

bool mx_sampler_any_thread(const mx_sampler *s)
{
    for (int i = 0; i < s->count; i++)
        if (!mx_tokens_any_thread(s->sources[i].tokens))
            return false;
    return true;
}

int mx_sampler_sources(const mx_sampler *s) { return s->count; }

mx_tokens *mx_sampler_source(const mx_sampler *sampler, int source) { return sampler->sources[source].tokens; }

int64_t mx_sampler_epoch(const mx_sampler *s, int source) { return s->sources[source].samples; }

/* The number in the run of sample n of source i, counted over all its epochs: the period is n / weight. */
static int64_t place_of(const mx_sampler *s, int i, int64_t n)
{
    int64_t t = 0;
    while (s->turns[t].source != i || s->turns[t].before != n % s->weights[i])
        t++;
    const int64_t periods = n / s->weights[i];
    return (double)periods * (double)s->period > 0x1p61 ? INT64_MAX : periods * s->period + t;
}

int64_t mx_sampler_until(const mx_sampler *s, int64_t epochs)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < s->count; i++) {
        double all = (double)epochs * (double)s->sources[i].samples;
        int64_t place = all > 0x1p61 ? INT64_MAX : place_of(s, i, epochs * s->sources[i].samples);
        least = place < least ? place : least;
    }
    return least;
}

/* The source of a sample, and the sample's number there, counted over all epochs. */
static mx_sample_source *source_of(const mx_sampler *s, int64_t sample, int64_t *number)
{
    const turn *t = &s->turns[sample % s->period];
    *number = sample / s->period * s->weights[t->source] + t->before;
    return &s->sources[t->source];
}

static mx_status check_number(int64_t sample)
{
    return sample >= 0 && sample < (int64_t)1 << 60
               ? MX_OK
               : mx_fail(MX_ERR_VALUE, "sample %lld: expected 0 to 2^60 - 1", (long long)sample);
}

/* Row r of `to`. */
static mx_samples row_of(const mx_samples *to, int64_t r, int64_t length)
{
    return (mx_samples){to->tokens + r * length, to->targets + r * length, to->segments + r * length,
                        to->positions + r * length, to->mask + r * length};
}

mx_status mx_sampler_fill(mx_sampler *s, int64_t first, int64_t rows, const mx_samples *to)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t number;
        MX_TRY(check_number(first + r));
        mx_sample_source *source = source_of(s, first + r, &number);
        mx_samples row = row_of(to, r, s->options.length);
        MX_TRY(mx_sample_source_fill(source, &s->options, number, s->row, &row));
    }
    return MX_OK;
}

mx_status mx_sampler_describe(mx_sampler *s, int64_t sample, char *text, size_t room)
{
    int64_t number;
    MX_TRY(check_number(sample));
    mx_sample_source *source = source_of(s, sample, &number);
    return mx_sample_source_describe(source, &s->options, number, text, room);
}
