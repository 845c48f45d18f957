/* What the random operations share: their options `seed` and `offset`, and the stream that these name. */
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

/* The two options, of an attribute struct with members `seed` and `offset`. */
#define MX_SEED_ATTRS(type)                                                                                            \
    {"seed", MX_ATTR_SEED, offsetof(type, seed),                                                                       \
     NAN,    NULL,         "key of the generator; default: the next number of the stream of mx.manual_seed"},          \
    {                                                                                                                  \
        "offset", MX_ATTR_INT, offsetof(type, offset), 0, NULL, "number of the generator's stream"                     \
    }

#endif
