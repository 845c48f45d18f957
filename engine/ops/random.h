/* The random stream of an operation with a seed. */
#ifndef MX_OPS_RANDOM_H
#define MX_OPS_RANDOM_H

#include "kernels/random.h"
#include "ops/op.h"

/* With a drawn key, the draw is used as the offset, in the half of the generator's range that scripts cannot select. */
static inline mx_stream mx_stream_of(mx_seed seed, int64_t offset)
{
    bool drawn = seed.draw != 0;
    return (mx_stream){(uint64_t)seed.key, (uint64_t)(drawn ? seed.draw : offset), drawn};
}

#endif
