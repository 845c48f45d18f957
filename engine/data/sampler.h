/* The sampler: which tokens make the sequence with a given number in a run, on any rank, without a table of the run.
 *
 * A run reads the samples 0, 1, 2, ... of its sources. A sample is a sequence of `length` tokens and the token that
 * follows each (its target). What a source's samples are depends on it:
 *
 * - windows, of a file without documents: token `length` i and what follows, for each i of its whole windows. The up to
 *   `length` tokens behind the last whole window are not read.
 * - packed, of a store with documents: they are laid end to end in the epoch's order and cut every `length` tokens, so
 *   each token is a target once, but for those that begin a document, which mask leaves out, and up to `length` at the
 *   end of the epoch. segments number the documents of a sequence from 1; positions start at 0 with each of them, and
 *   with the sequence.
 * - padded, of a store with documents: a sequence has one document, longer ones make several sequences. What is left
 *   over is 0, with mask 0 and segment 0. Documents of less than two tokens have no targets and are left out.
 *
 * Each epoch goes through all samples of a source once, in a new order: packed ones with the documents in a new order,
 * and the sequences then too. With several sources each sample comes from one of them, so that their shares are those
 * of the weights: exactly so after each period, of which each source has `weight` samples.
 *
 * All of it follows from the seed and the sample's number. Lookups cost microseconds; the first one in a packed epoch
 * goes through its documents once. One thread at a time; not collective. */
#ifndef MX_DATA_SAMPLER_H
#define MX_DATA_SAMPLER_H

#include "data/tokens.h"

typedef struct mx_sampler_options {
    int64_t length;
    bool packing; /* documents are packed, else padded */
    bool shuffle; /* false: documents, windows and sequences come in the order of the file */
    uint64_t seed;
    int64_t vocab_size; /* a token that is not below is MX_ERR_VALUE where it is read */
} mx_sampler_options;

/* (rows, length) each. */
typedef struct mx_samples {
    int32_t *tokens, *targets, *segments, *positions;
    uint8_t *mask; /* 1: the target counts */
} mx_samples;

typedef struct mx_sampler mx_sampler;

/* The most samples that a period of weights may have. */
enum { MX_SAMPLER_PERIOD = 1 << 20 };

/* Takes the sources over, also when it fails. `weights` are at least 1 each, with no common divisor. MX_ERR_VALUE for a
 * source that has not one sample, a store made for a larger vocabulary, or weights whose sum is above
 * MX_SAMPLER_PERIOD.
 */
mx_status mx_sampler_new(mx_tokens **sources, const int64_t *weights, int count, const mx_sampler_options *options,
                         mx_sampler **out);
void mx_sampler_free(mx_sampler *sampler); /* NULL is allowed */

/* Whether a source has documents: only then do segments, positions and mask say anything. */
bool mx_sampler_has_documents(const mx_sampler *sampler);
bool mx_sampler_any_thread(const mx_sampler *sampler);

int mx_sampler_sources(const mx_sampler *sampler);
mx_tokens *mx_sampler_source(const mx_sampler *sampler, int source); /* stays the sampler's */

/* Samples of an epoch of a source; of the run until the first source has been read `epochs` times. */
int64_t mx_sampler_epoch(const mx_sampler *sampler, int source);
int64_t mx_sampler_until(const mx_sampler *sampler, int64_t epochs);

/* Samples [first, first + rows) of the run. All five arrays are written. */
mx_status mx_sampler_fill(mx_sampler *sampler, int64_t first, int64_t rows, const mx_samples *to);

/* What sample number `sample` is, in words: "a.h5 epoch 0 documents 17, 4, 99". Documents count from 0, windows too. */
mx_status mx_sampler_describe(mx_sampler *sampler, int64_t sample, char *text, size_t room);

#endif
