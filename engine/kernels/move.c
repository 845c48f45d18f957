#include "kernels/move.h"

#include "kernels/context.h"
#include "kernels/inline.h"

#include <string.h>

/* False if the path has no vectors of such elements, or a block is too large. */
static bool begin(mx_shuffle *s, size_t element_bytes, int64_t ins, int64_t outs)
{
    s->lanes = mx_kernels_current()->moves->lanes[element_bytes];
    s->element_bytes = element_bytes;
    if (s->lanes == 0 || ins > MX_PATTERN_VECTORS || outs > MX_PATTERN_VECTORS)
        return false;
    memset(s->pattern.from, 0, sizeof s->pattern.from);
    s->pattern.ins = (int)ins;
    s->pattern.outs = (int)outs;
    return true;
}

/* Result number i, counted through the vectors of a block, is element `source` of the inputs, counted so. */
static void set(mx_shuffle *s, int i, int64_t source)
{
    int a = i / s->lanes, at = i % s->lanes;
    const uint64_t lane = (uint64_t)(source % s->lanes);
    memcpy(s->pattern.lane[a] + (size_t)at * s->element_bytes, &lane, s->element_bytes); /* little-endian */
    s->pattern.from[a][source / s->lanes] |= 1u << at;
}

static bool divides(int64_t run, int lanes) { return run > 0 && lanes % run == 0; }

bool mx_shuffle_join(mx_shuffle *s, int k, int64_t run, size_t element_bytes)
{
    if (!begin(s, element_bytes, k, k) || !divides(run, s->lanes))
        return false;
    for (int i = 0; i < k * s->lanes; i++)
        set(s, i, i / run % k * s->lanes + i / run / k * run + i % run);
    return true;
}

bool mx_shuffle_part(mx_shuffle *s, int k, size_t element_bytes)
{
    if (!begin(s, element_bytes, k, k))
        return false;
    for (int i = 0; i < k * s->lanes; i++)
        set(s, i, i % s->lanes * k + i / s->lanes);
    return true;
}

bool mx_shuffle_take(mx_shuffle *s, int64_t run, int64_t row, size_t element_bytes)
{
    if (!begin(s, element_bytes, 1, 1) || !divides(run, s->lanes))
        return false;
    int64_t ins = mx_ceil_div((s->lanes / run - 1) * row + run, s->lanes);
    if (!begin(s, element_bytes, ins, 1))
        return false;
    for (int i = 0; i < s->lanes; i++)
        set(s, i, i / run * row + i % run);
    return true;
}

bool mx_shuffle_reverse(mx_shuffle *s, size_t element_bytes)
{
    if (!begin(s, element_bytes, 1, 1))
        return false;
    for (int i = 0; i < s->lanes; i++)
        set(s, i, s->lanes - 1 - i);
    return true;
}

bool mx_shuffle_repeat(mx_shuffle *s, int64_t times, size_t element_bytes)
{
    int64_t outs = MX_PATTERN_VECTORS;
    if (!begin(s, element_bytes, 1, 1))
        return false;
    while (outs > 0 && (outs * s->lanes % times != 0 || outs > times))
        outs--;
    if (outs == 0)
        return false;
    s->pattern.outs = (int)outs;
    for (int i = 0; i < outs * s->lanes; i++)
        set(s, i, i / times);
    return true;
}
