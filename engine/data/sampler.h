/* The sampler: computes the tokens of the sample with a given number, on any rank, without a table of the run.
 *
 * A run reads the samples 0, 1, 2, ... of its sources. A sample is a sequence of `length` tokens and, for each of them,
 * the token that follows it (its target). There are three kinds of samples:
 *
 * - windows, for a file without documents: window i starts at token `length` * i. The up to `length` tokens behind the
 *   last whole window are not read.
 * - packed, for a store with documents: the documents are joined in the epoch's order and cut every `length` tokens.
 * Each token is a target once, except the first token of each document, which the mask excludes, and up to `length`
 * tokens at the end of the epoch. segments number the documents of a sequence from 1. positions start at 0 with each
 * document and with each sequence.
 * - padded, for a store with documents: a sequence holds one document; a longer document becomes several sequences. The
 *   padding is 0, with mask 0 and segment 0. Documents of fewer than two tokens have no targets and are left out.
 *
 * Each epoch visits all samples of a source once, in a new order. For packed samples, first the documents and then the
 * sequences get a new order. With several sources, each sample comes from one of them. In each period a source has
 * exactly `weight` samples, so its share of the run is that of its weight.
 *
 * Everything follows from the seed and the sample's number. A lookup takes microseconds; the first one in a packed
 * epoch visits all documents once. One thread at a time; not collective. */
#ifndef MX_DATA_SAMPLER_H
#define MX_DATA_SAMPLER_H

#include "data/tokens.h"

typedef struct mx_sampler_options {
    int64_t length;
    bool packing; /* true: packed samples; false: padded samples */
    bool shuffle; /* false: documents, windows and sequences come in the order of the file */
    uint64_t seed;
    int64_t vocab_size; /* reading a token that is not below this is MX_ERR_VALUE */
} mx_sampler_options;

/* Arrays of shape (rows, length). */
typedef struct mx_samples {
    int32_t *tokens, *targets, *segments, *positions;
    uint8_t *mask; /* 1: the target counts */
} mx_samples;

typedef struct mx_sampler mx_sampler;

/* The largest number of samples in a period: the largest sum of weights. */
enum { MX_SAMPLER_PERIOD = 1 << 20 };

/* Takes over the sources, even on failure. Each weight is at least 1, and the weights have no common divisor.
 * MX_ERR_VALUE for a source without samples, a store made for a larger vocabulary, or weights whose sum is above
 * MX_SAMPLER_PERIOD. */
mx_status mx_sampler_new(mx_tokens **sources, const int64_t *weights, int count, const mx_sampler_options *options,
                         mx_sampler **out);
void mx_sampler_free(mx_sampler *sampler); /* NULL is allowed */

/* Whether any source has documents. Otherwise segments, positions and mask carry no information. */
bool mx_sampler_has_documents(const mx_sampler *sampler);
bool mx_sampler_any_thread(const mx_sampler *sampler);

int mx_sampler_sources(const mx_sampler *sampler);
mx_tokens *mx_sampler_source(const mx_sampler *sampler, int source); /* the sampler owns it */

/* epoch: the number of samples in an epoch of a source. until: the number of samples of the run until a first source
 * has been read `epochs` times. */
int64_t mx_sampler_epoch(const mx_sampler *sampler, int source);
int64_t mx_sampler_until(const mx_sampler *sampler, int64_t epochs);

/* Writes samples [first, first + rows) of the run to all five arrays. */
mx_status mx_sampler_fill(mx_sampler *sampler, int64_t first, int64_t rows, const mx_samples *to);

/* Describes a sample in words: "a.h5 epoch 0 documents 17, 4, 99". Documents and windows count from 0. */
mx_status mx_sampler_describe(mx_sampler *sampler, int64_t sample, char *text, size_t room);

#endif
