#include "kernels/context.h"

#include "core/element.h"
#include "kernels/rope.h"

#include <string.h>

/* The two components of pair i of the head at `head` turn by the angle with cosine c and sine s. */
static void turn(const mx_rope *r, int64_t head, int64_t i, float c, float s)
{
    int64_t dim = r->frequencies.dims;
    int64_t one = head + (r->frequencies.interleaved ? 2 * i : i);
    int64_t two = r->frequencies.interleaved ? one + 1 : one + dim / 2;
    float x1 = mx_get_float(r->x, one, r->dtype), x2 = mx_get_float(r->x, two, r->dtype);
    mx_set_float(r->y, one, x1 * c - x2 * s, r->dtype);
    mx_set_float(r->y, two, x2 * c + x1 * s, r->dtype);
}

static void rotate(const mx_rope_tokens *t)
{
    const mx_rope *r = t->rope;
    int64_t dim = r->frequencies.dims, bytes = (int64_t)mx_dtype_bytes(r->dtype);
    bool interleaved = r->frequencies.interleaved;
    for (int64_t token = t->first; token < t->last; token++) {
        const float *angles = t->angles + t->row[token] * (interleaved ? 2 * dim : dim);
        for (int64_t h = 0; h < r->heads; h++) {
            int64_t head = (token * r->heads + h) * r->head_dim, rest = (head + dim) * bytes;
            for (int64_t i = 0; i < dim / 2; i++) {
                float c = angles[interleaved ? 2 * i : i], s = angles[interleaved ? dim + 2 * i + 1 : dim / 2 + i];
                turn(r, head, i, c, r->inverse ? -s : s);
            }
            if (r->x != r->y)
                memcpy((char *)r->y + rest, (const char *)r->x + rest, (size_t)((r->head_dim - dim) * bytes));
        }
    }
}

const mx_rope_paths mx_rope_portable = {.rotate = rotate};
