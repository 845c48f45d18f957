/* Group norm of short planes: a set is one run of memory, whose elements have weights and biases of their own. Sets are
 * done in the order of memory. */
#include "kernels/channel_numbers.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

enum {
    NEAR = 8192,      /* elements of neighbouring sets, whose numbers are computed together: their chains overlap */
    MOST = 16,        /* and so many sets */
    PIECE = MX_CHUNK, /* elements whose sums are f32, */
    HEIGHT = 64,      /* and images */
    CHUNK = 32768,    /* elements of each image that a thread takes at once */
};

typedef struct plan {
    const mx_channel_norm *n;
    int64_t count, image; /* elements of a set, and of an image */
    int64_t some;         /* sets whose numbers are computed together */
    bool stream;
    float *weight, *bias; /* of each element of an image */
} plan;

/* Each channel's number for all elements of its plane. */
static void spread(const mx_channel_norm *n, mx_array numbers, double otherwise, float *each)
{
    for (int64_t c = 0; c < n->channels; c++) {
        float one = single(value_of(numbers, c, otherwise));
        for (int64_t j = 0; j < n->inner; j++)
            each[c * n->inner + j] = one;
    }
}

static int64_t scratch_bytes(const plan *p) { return 2 * p->image * (int64_t)sizeof(float); }

static mx_status make_plan(const mx_channel_norm *n, mx_array out, plan *p)
{
    int64_t size = (int64_t)mx_dtype_bytes(n->x.dtype);
    *p = (plan){.n = n, .image = n->channels * n->inner};
    p->count = p->image / n->groups;
    p->some = mx_min(MOST, mx_max(1, NEAR / p->count));
    p->stream = out.data != n->x.data && mx_should_stream(2 * n->batch * p->image * size);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(scratch_bytes(p), &scratch));
    p->weight = scratch;
    p->bias = p->weight + p->image;
    spread(n, n->weight, 1, p->weight);
    spread(n, n->bias, 0, p->bias);
    return MX_OK;
}

/* Of a set: where its first element is in an image. */
static int64_t place_of(const plan *p, int64_t set) { return set % p->n->groups * p->count; }

static mx_channel_set numbers_of(const plan *p, int64_t set, double mean, double rstd)
{
    int64_t place = place_of(p, set);
    return (mx_channel_set){.n = p->count,
                            .mean = single(mean),
                            .scale = single(rstd),
                            .weight = p->weight + place,
                            .bias = p->bias + place,
                            .ahead = p->some * p->count};
}

/* ---- forward ---- */

static void forward_sets(const plan *p, int64_t first, int64_t last)
{
    const mx_channel_norm *n = p->n;
    mx_channel_set sets[MOST];
    for (int64_t set = first; set < last; set++) {
        if (!n->fixed)
            put_moments(n, set, mx_row_moments(at(n->x, set * p->count), p->count));
        double mean = value_of(n->mean, set, 0), rstd = rstd_of(n, set);
        mx_channel_set *s = &sets[set - first];
        *s = numbers_of(p, set, mean, rstd);
        s->shift = single(((double)s->mean - mean) * rstd);
    }
    for (int64_t set = first; set < last; set++) {
        int64_t from = set * p->count;
        mx_kernels_current()->channels->set_forward(at(n->x, from), &sets[set - first], at(n->y, from).data, p->stream);
    }
}

mx_status mx_short_groups_forward(const mx_channel_norm *n)
{
    plan p;
    MX_TRY(make_plan(n, n->y, &p));
    int64_t sets = n->batch * n->groups;
#pragma omp parallel if (n->batch * p.image >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < sets; first += p.some)
            forward_sets(&p, first, mx_min(first + p.some, sets));
        _mm_sfence();
    }
    mx_pool_free(p.weight, scratch_bytes(&p));
    return MX_OK;
}

/* ---- backward ---- */

static pair sums_of_set(const plan *p, const mx_channel_set *s, int64_t from)
{
    pair all = {0};
    for (int64_t i = 0; i < p->count; i += PIECE) {
        mx_channel_set piece = *s;
        float sums[2];
        piece.n = mx_min(PIECE, p->count - i);
        piece.weight += i;
        mx_kernels_current()->channels->set_sums(at(p->n->x, from + i), at(p->n->dy, from + i).data, &piece, sums);
        all = (pair){all.sum + (double)sums[0], all.dot + (double)sums[1]};
    }
    return all;
}

/* Sets `first` to before `last` of one image; adds to the gradients of weight and of bias of their elements. */
static void backward_sets(const plan *p, int64_t first, int64_t last, float *dweight, float *dbias)
{
    const mx_channel_norm *n = p->n;
    mx_channel_set sets[MOST];
    for (int64_t set = first; set < last; set++) {
        double rstd = rstd_of(n, set), slope, shift;
        mx_channel_set *s = &sets[set - first];
        *s = numbers_of(p, set, value_of(n->mean, set, 0), rstd);
        pair all = sums_of_set(p, s, set * p->count);
        find_slope(n, set, (double)p->count, rstd, all, &slope, &shift);
        s->slope = single(slope);
        s->shift = single(shift);
    }
    for (int64_t set = first; set < last; set++) {
        int64_t from = set * p->count, own = (set - first) * p->count;
        mx_kernels_current()->channels->set_backward(at(n->x, from), at(n->dy, from).data, &sets[set - first],
                                                     at(n->dx, from).data, dweight + own, dbias + own, p->stream);
    }
}

/* Adds the sums of elements to those of their channels, and clears them. */
static void add_channels(const plan *p, int64_t channel, int64_t channels, float *each, double *sums)
{
    int64_t inner = p->n->inner;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t j = 0; j < inner; j++)
            sums[channel + c] += (double)each[c * inner + j];
    memset(each, 0, (size_t)(channels * inner) * sizeof *each);
}

/* `groups` groups from `group` on in images `first` to before `last`. */
static void backward_unit(const plan *p, int64_t group, int64_t groups, int64_t first, int64_t last, float *each,
                          double *sums)
{
    const mx_channel_norm *n = p->n;
    int64_t channels = n->channels / n->groups * groups, channel = n->channels / n->groups * group;
    float *dweight = each, *dbias = each + groups * p->count;
    memset(each, 0, (size_t)(2 * groups * p->count) * sizeof *each);
    for (int64_t i = first; i < last; i++) {
        int64_t set = i * n->groups + group;
        for (int64_t g = 0; g < groups; g += p->some)
            backward_sets(p, set + g, set + mx_min(g + p->some, groups), dweight + g * p->count, dbias + g * p->count);
        if ((i - first) % HEIGHT == HEIGHT - 1 || i == last - 1) {
            add_channels(p, channel, channels, dweight, sums);
            add_channels(p, channel, channels, dbias, sums + n->channels);
        }
    }
}

mx_status mx_short_groups_backward(const mx_channel_norm *n, int64_t block_images, double *sums)
{
    plan p;
    MX_TRY(make_plan(n, n->dx, &p));
    int64_t groups = mx_min(n->groups, mx_max(1, CHUNK / p.count)), across = mx_ceil_div(n->groups, groups);
    int64_t units = mx_ceil_div(n->batch, block_images) * across, room = 2 * groups * p.count;
    int64_t bytes = omp_get_max_threads() * room * (int64_t)sizeof(float);
    float *each = NULL;
    mx_status status = mx_pool_alloc(bytes, (void **)&each);
#pragma omp parallel if (n->batch * p.image >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < (status == MX_OK ? units : 0); unit++) {
            int64_t block = unit / across, group = unit % across * groups, first = block * block_images;
            backward_unit(&p, group, mx_min(groups, n->groups - group), first, mx_min(first + block_images, n->batch),
                          each + omp_get_thread_num() * room, sums + 2 * block * n->channels);
        }
        _mm_sfence();
    }
    if (status == MX_OK)
        mx_pool_free(each, bytes);
    mx_pool_free(p.weight, scratch_bytes(&p));
    return status;
}
