/* Chunks against counting element by element: random boxes and runs in tensors of up to three dimensions. */
#include "check.h"
#include "checkpoint/chunk.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 6 * 5 * 7 };

static int64_t below(int64_t n) { return n > 0 ? rand() % n : 0; }

static mx_chunk random_chunk(const mx_shape *whole)
{
    mx_chunk c = {.n_dims = whole->n_dims};
    int64_t count = 1;
    for (int d = 0; d < whole->n_dims; d++) {
        c.offset[d] = below(whole->size[d] + 1);
        c.extent[d] = below(whole->size[d] - c.offset[d] + 1);
        count *= c.extent[d];
    }
    c.first = below(count + 1);
    c.count = below(count - c.first + 1);
    return c;
}

/* Where element i of the chunk's box lies in the whole tensor. */
static int64_t global_place(const mx_chunk *c, const mx_shape *whole, int64_t i)
{
    int64_t at[MX_MAX_DIMS] = {0}, place = 0;
    for (int d = c->n_dims - 1; d >= 0; d--) {
        at[d] = c->offset[d] + i % c->extent[d];
        i /= c->extent[d];
    }
    for (int d = 0; d < c->n_dims; d++)
        place = place * whole->size[d] + at[d];
    return place;
}

static void check_pair(const mx_shape *whole, const mx_chunk *want, const mx_chunk *have)
{
    int wanted[MOST], expected[MOST], got[MOST], values[MOST];
    int64_t total = 0, first = 0, last = 0, from, to;
    for (int i = 0; i < MOST; i++)
        wanted[i] = -1;
    for (int64_t i = 0; i < want->count; i++)
        wanted[global_place(want, whole, want->first + i)] = (int)i;
    memset(expected, 0, sizeof expected);
    memset(got, 0, sizeof got);
    for (int64_t i = 0; i < have->count; i++) {
        int64_t place = global_place(have, whole, have->first + i);
        values[i] = 1000 + (int)place;
        if (wanted[place] < 0)
            continue;
        first = total++ == 0 ? have->first + i : first;
        last = have->first + i + 1;
        expected[wanted[place]] = 1000 + (int)place;
    }
    CHECK(mx_chunk_overlap(want, have, &from, &to) == total, "elements of both");
    CHECK(total == 0 || (from == first && to == last), "the run that has them");
    mx_chunk_copy(want, got, have, total ? from : have->first, values + (total ? from - have->first : 0), sizeof *got);
    CHECK(memcmp(got, expected, sizeof got) == 0, "what is copied");
}

int main(void)
{
    srand(1);
    for (int n_dims = 0; n_dims <= 3; n_dims++) {
        mx_shape whole = {.n_dims = n_dims, .size = {6, 5, 7}};
        for (int i = 0; i < 3000; i++) {
            mx_chunk want = random_chunk(&whole), have = random_chunk(&whole);
            CHECK(mx_chunk_fits(&want, &whole) && mx_chunk_fits(&have, &whole), "a chunk inside fits");
            check_pair(&whole, &want, &have);
        }
    }
    const mx_shape whole = {.n_dims = 1, .size = {10}};
    CHECK(!mx_chunk_fits(&(mx_chunk){.n_dims = 1, .offset = {8}, .extent = {3}, .count = 3}, &whole), "box too long");
    CHECK(!mx_chunk_fits(&(mx_chunk){.n_dims = 1, .offset = {0}, .extent = {3}, .count = 4}, &whole), "run too long");
    CHECK(!mx_chunk_fits(&(mx_chunk){.n_dims = 1, .offset = {0}, .extent = {3}, .first = INT64_MAX, .count = INT64_MAX},
                         &whole),
          "sizes that overflow");
    CHECK(!mx_chunk_fits(&(mx_chunk){.n_dims = 2, .extent = {1, 1}}, &whole), "other dimensions");
    return check_done();
}
