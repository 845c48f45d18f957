/* The feed: batches of a sampler, prepared on a thread while the script computes.
 *
 * After a batch has been handed out, the next `depth` ones are read ahead: those that start `stride` samples further
 * each. Which batch comes is the caller's choice alone; asking for another one than expected discards what was read.
 * A failure is told when its batch is asked for. The script's thread only; not collective. */
#ifndef MX_DATA_FEED_H
#define MX_DATA_FEED_H

#include "data/sampler.h"

typedef struct mx_feed mx_feed;

/* Batches of `rows` samples. Takes the sampler over, also when it fails. depth 0, or a source that no other thread may
 * read: each batch is read when it is asked for. MX_ERR_VALUE, MX_ERR_MEMORY. */
mx_status mx_feed_new(mx_sampler *sampler, int64_t rows, int64_t length, int64_t stride, int depth, mx_feed **out);
void mx_feed_free(mx_feed *feed); /* waits for what is under way; NULL is allowed */

/* The batch of samples [first, first + rows), valid until the next call for this feed. */
mx_status mx_feed_next(mx_feed *feed, int64_t first, const mx_samples **out);

bool mx_feed_has_documents(const mx_feed *feed); /* of mx_sampler_has_documents */

/* The sampler, once nothing reads it: for questions. Batches that were read ahead stay. */
mx_sampler *mx_feed_sampler(mx_feed *feed);

/* Seconds that mx_feed_next has waited, or read itself, since the last call of this. */
double mx_feed_waited(mx_feed *feed);

#endif
