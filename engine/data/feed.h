/* The feed: prefetches batches of a sampler on a thread while the script computes.
 *
 * After each batch, the feed prefetches the next `depth` batches, each of which starts `stride` samples after the one
 * before. The caller may request any batch; a request for another batch than expected discards the prefetched ones. A
 * failure is returned when its batch is requested. Script's thread only; not collective. */
#ifndef MX_DATA_FEED_H
#define MX_DATA_FEED_H

#include "data/sampler.h"

typedef struct mx_feed mx_feed;

/* A feed of batches of `rows` samples. Takes over the sampler, even on failure. With depth 0, or a source that only the
 * script's thread may read, each batch is read when it is requested. MX_ERR_VALUE, MX_ERR_MEMORY. */
mx_status mx_feed_new(mx_sampler *sampler, int64_t rows, int64_t length, int64_t stride, int depth, mx_feed **out);
void mx_feed_free(mx_feed *feed); /* waits for reads in flight; NULL is allowed */

/* The batch of samples [first, first + rows), valid until the next call for this feed. */
mx_status mx_feed_next(mx_feed *feed, int64_t first, const mx_samples **out);

bool mx_feed_has_documents(const mx_feed *feed); /* as mx_sampler_has_documents */

/* Waits until nothing reads the sampler and returns it, for queries. Prefetched batches stay. */
mx_sampler *mx_feed_sampler(mx_feed *feed);

/* Seconds that mx_feed_next has spent waiting or reading since the last call of this function. */
double mx_feed_waited(mx_feed *feed);

#endif
