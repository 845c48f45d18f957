/* One source of a sampler: computes its samples by number. Only for sampler.c. */
#ifndef MX_DATA_SAMPLER_SOURCE_H
#define MX_DATA_SAMPLER_SOURCE_H

#include "data/permutation.h"
#include "data/sampler.h"

/* The index holds running sums over the documents in an order, one for every MX_INDEX_STRIDE documents. */
enum { MX_INDEX_STRIDE = 256 };

typedef struct mx_sample_source {
    mx_tokens *tokens;
    const mx_store *store; /* NULL: windows */
    int64_t documents;
    int64_t samples; /* in one epoch */
    uint64_t seed;
    int64_t epoch;           /* the epoch of `order` and `shuffled`; -1: none yet */
    mx_permutation order;    /* order of an epoch's samples */
    mx_permutation shuffled; /* order of its documents; padded: the identity */
    int64_t *index;          /* packed: tokens before document k STRIDE in the order; padded: samples before it */
} mx_sample_source;

/* Prepares source number i and counts its samples. */
mx_status mx_sample_source_start(mx_sample_source *s, const mx_sampler_options *o, int i);
void mx_sample_source_stop(mx_sample_source *s); /* closes its tokens */

/* Writes sample `number`, counted over all epochs, to one row of each array; `scratch` has room for length + 1 tokens.
 */
mx_status mx_sample_source_fill(mx_sample_source *s, const mx_sampler_options *o, int64_t number, int32_t *scratch,
                                const mx_samples *row);
mx_status mx_sample_source_describe(mx_sample_source *s, const mx_sampler_options *o, int64_t number, char *text,
                                    size_t room);

#endif
