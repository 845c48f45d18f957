/* The gradient of convolutions by their weights as matrix products: of dy of a group (outputs, batch x positions) and
 * the columns of x, transposed (batch x positions, taps x inputs). Columns of a block of positions are packed from
 * copies of what it meets of x, in which the channels are neighbours; with a kernel of one element, from x itself.
 *
 *     for groups, chunks of channels of x, chunks of outputs      on any thread
 *     for blocks of kc positions                         copies of x; dy packed
 *     for panels of columns                              packed into the first- or second-level cache
 *     for panels of rows                                 the micro-kernel, onto sums in f32
 *
 * Each element is one sum in blocks of kc positions, whatever the number of threads. */
#include "kernels/conv_internal.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

/* Outputs of a chunk; columns of a chunk, unless a channel has more; channels that are copied at once. */
enum { ROWS = 256, COLUMNS = 768, PLANES = 16 };

typedef struct job {
    const mx_micro *u;
    mx_conv_pass p; /* forward */
    bool joined;    /* copies have words of two positions, which are always neighbours in a row */
    bool swapped;   /* of points: x and dy take each other's part, and the weights are turned */
    float *dw;
    mx_conv_planes planes, planes_dy; /* of x and of dy, of all groups */
    mx_conv_blocks blocks;            /* of positions */
    int64_t channels, rows;           /* of x and of y in a chunk, the latter whole panels */
    int64_t columns;                  /* of a chunk, whole panels */
    int64_t floats, bytes;            /* the most of a copy; bytes of a thread's scratch */
} job;

/* ---- scratch ---- */

typedef struct room {
    float *sums, *copies, *turned;
    uint32_t *a, *panel;
    int64_t *at;
    char *lines; /* mr rows of a block of dy */
    float *line; /* all sums of an output */
} room;

static room room_of(const job *j, char *scratch, int64_t *bytes)
{
    int64_t words = mx_conv_words(j->u, j->blocks.size), floats = j->floats, end = 0;
    int64_t sizes[] = {j->rows * j->columns,
                       j->p.in_place ? j->u->nr * j->blocks.size : mx_min(PLANES, j->channels) * floats + MX_CONV_SLACK,
                       j->p.in_place ? 0 : floats * j->channels + MX_CONV_SLACK,
                       j->rows * words,
                       j->u->nr * words + MX_CONV_SLACK,
                       2 * j->blocks.size,
                       j->u->mr * j->blocks.size,
                       2 * j->columns};
    char *at[sizeof sizes / sizeof *sizes];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = scratch + end;
        end += mx_round_up(sizes[i] * 4, 64);
    }
    *bytes = end;
    return (room){(float *)at[0],    (float *)at[1],   (float *)at[2], (uint32_t *)at[3],
                  (uint32_t *)at[4], (int64_t *)at[5], at[6],          (float *)at[7]};
}

/* ---- operands ---- */

/* n positions of `m` planes of dy, from output `row` of a group on, packed as a panel of A. */
static void pack_dy(const job *j, int64_t group, int64_t row, int64_t m, int64_t first, int64_t n, char *lines,
                    uint32_t *packed)
{
    const mx_conv_pass *q = &j->p;
    int64_t size = q->w.out[0] * q->w.out[1], channels = q->groups * q->outputs, image = first / size;
    int64_t channel = group * q->outputs + row;
    size_t bytes = mx_dtype_bytes(j->planes_dy.x.dtype);
    if (first + n <= (image + 1) * size) {
        int64_t at = (image * channels + channel) * size + first % size;
        j->u->pack_a(m, n, mx_conv_part(j->planes_dy.x, at).data, j->planes_dy.x.dtype, size, false, packed);
        return;
    }
    for (int64_t p = 0, some; p < n; p += some) {
        int64_t at = (first + p) % size;
        image = (first + p) / size;
        some = mx_min(n - p, size - at);
        for (int64_t i = 0; i < m; i++)
            memcpy(lines + (size_t)(i * n + p) * bytes,
                   mx_conv_part(j->planes_dy.x, (image * channels + channel + i) * size + at).data,
                   (size_t)some * bytes);
    }
    j->u->pack_a(m, n, lines, j->planes_dy.x.dtype, n, false, packed);
}

/* Copies of channels of x, turned: element i of each copy, then i + 1 of each. */
static void copy_x(const job *j, const mx_conv_copy *copy, int64_t channel, int64_t n, room *r)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t floats = copy->lines * copy->row;
    for (int64_t i = 0; i < n; i += PLANES) {
        int64_t planes = mx_min(PLANES, n - i);
        for (int64_t p = 0; p < planes; p++)
            mx_conv_copy_fill(copy, &j->planes, channel + i + p, r->copies + p * floats);
        if (j->joined)
            paths->join(planes * floats, r->copies, j->p.w.stride[1]);
        paths->turn(planes, floats, (mx_array){r->copies, MX_F32}, floats, n, r->turned + i);
    }
}

/* Packs n channels from `channel` on as a panel: of planes that are met element by element, as they are. Those of a
 * block of several images are joined first. */
static void pack_x(const job *j, const mx_conv_copy *copy, int64_t channel, int64_t n, const room *r)
{
    const mx_conv_planes *planes = &j->planes;
    mx_array x = mx_conv_part(planes->x, channel * planes->step);
    size_t bytes = mx_dtype_bytes(x.dtype);
    int64_t size = j->p.w.out[1], step = planes->step, image = copy->first / size, first = copy->first % size;
    if (first + copy->count <= size) {
        x = mx_conv_part(x, image * planes->image_step + first);
    } else {
        char *lines = (char *)r->copies;
        for (int64_t p = 0, some; p < copy->count; p += some, image++, first = 0) {
            some = mx_min(copy->count - p, size - first);
            for (int64_t i = 0; i < n; i++)
                memcpy(lines + (size_t)(i * copy->count + p) * bytes,
                       mx_conv_part(x, image * planes->image_step + i * step + first).data, (size_t)some * bytes);
        }
        x.data = lines;
        step = copy->count;
    }
    if (j->u->k_group == 1 && j->u->k_unit == 1)
        mx_kernels_current()->conv->turn(n, copy->count, x, step, j->u->nr, (float *)r->panel);
    else
        j->u->pack_b(n, copy->count, x.data, x.dtype, step, true, r->panel);
}

/* Columns `first` to before first + n of a chunk of `channels`, of which each tap has one for each channel. */
static int64_t columns_of(const job *j, const mx_conv_copy *copy, int64_t channels, int64_t first, int64_t n,
                          mx_conv_run *runs)
{
    int64_t count = 0;
    for (int64_t to = 0, some; to < n; to += some) {
        int64_t channel = (first + to) % channels;
        mx_conv_tap tap = mx_conv_pass_tap(&j->p, (first + to) / channels);
        int64_t at = mx_conv_copy_at(copy, tap.d, tap.e) * channels + channel;
        some = mx_min(channels - channel, n - to);
        if (count > 0 && runs[count - 1].from + runs[count - 1].n == at)
            runs[count - 1].n += some;
        else
            runs[count++] = (mx_conv_run){at, to, some};
    }
    return count;
}

/* ---- chunks ---- */

/* Channels of x, counted from the first of all groups, and outputs of a group. */
typedef struct chunk {
    int64_t group, channel, channels, row, rows;
} chunk;

/* What is read next: for copies of x or, in place, for the next panel; and of dy for the next block. */
typedef struct reading {
    mx_conv_asking x, dy;
} reading;

/* The product of packed panel number `panel` of `panels`, of n columns from `column` on, for a block of positions, onto
 * the sums. What is read next is prefetched meanwhile. */
static void multiply(const job *j, const chunk *k, int64_t column, int64_t n, int64_t words, bool onto, const room *r,
                     reading *next, int64_t panel, int64_t panels)
{
    int64_t mr = j->u->mr, nr = j->u->nr, tiles = mx_ceil_div(k->rows, mr);
    for (int64_t i = 0; i < tiles; i++) {
        int64_t part = panel * tiles + i + 1, parts = panels * tiles;
        mx_ahead ahead[2 * MX_CONV_AHEAD + 1];
        mx_ahead *more = mx_conv_list(&next->x, j->p.in_place ? i + 1 : part, j->p.in_place ? tiles : parts, ahead);
        mx_conv_list(&next->dy, part, parts, more);
        mx_micro_multiply(j->u, n, words, r->a + i * mr * words, r->panel, 1, r->sums + column * j->rows + i * mr * nr,
                          nr, onto, ahead);
    }
}

static void add_block(const job *j, const chunk *k, int64_t block, room *r)
{
    const mx_micro *u = j->u;
    const mx_windows points = {.in = {j->planes_dy.step, 1}, .out = {j->planes_dy.step, 1}, .stride = {1, 1}};
    mx_conv_copy copy = mx_conv_copy_of(&j->p.w, j->p.batch, &j->blocks, block), after = copy;
    int64_t n = copy.count, words = mx_conv_words(u, n), columns = k->channels * j->p.taps, nr = u->nr;
    int64_t panels = mx_ceil_div(columns, nr), group = j->joined ? 2 : 1;
    bool last = block + 1 == j->blocks.count;
    reading next = {.x = {copy, &j->planes, k->channel, 0, 0}, .dy = {copy, &j->planes_dy, 0, 0, 0}};
    mx_conv_run runs[MX_CONV_MOST_COLUMNS];
    mx_conv_panel panel;
    if (!last) {
        after = mx_conv_copy_of(&j->p.w, j->p.batch, &j->blocks, block + 1);
        next.x = (mx_conv_asking){after, &j->planes, k->channel, k->channels, 0};
        next.dy = (mx_conv_asking){mx_conv_copy_between(&points, after.first, after.count), &j->planes_dy,
                                   k->group * j->p.outputs + k->row, k->rows, 0};
    }
    if (!j->p.in_place)
        copy_x(j, &copy, k->channel, k->channels, r);
    for (int64_t p = 0; p < n && !j->p.in_place;) { /* what is left of a row of results */
        (void)mx_conv_copy_runs(&copy, p, mx_min(n - p, copy.columns), runs);
        for (int64_t i = 0; i < runs[0].n; i += group, p += group)
            r->at[p / group] = (runs[0].from + i * copy.step) * k->channels;
    }
    for (int64_t i = 0; i < k->rows; i += u->mr)
        pack_dy(j, k->group, k->row + i, mx_min(u->mr, k->rows - i), copy.first, n, r->lines, r->a + i * words);
    for (int64_t i = 0; i < panels; i++) {
        int64_t c = i * nr, some = mx_min(nr, columns - c);
        if (j->p.in_place) {
            pack_x(j, &copy, k->channel + c, some, r);
            int64_t begin = i + 1 < panels ? c + nr : 0;
            next.x = (mx_conv_asking){begin > 0 ? copy : after, &j->planes, k->channel + begin,
                                      begin > 0 || !last ? mx_min(nr, columns - begin) : 0, 0};
        } else {
            mx_conv_panel_cut(u, runs, columns_of(j, &copy, k->channels, c, some, runs), &panel);
            mx_conv_panel_pack(u, &panel, r->turned, n, r->at, j->joined, r->panel);
        }
        multiply(j, k, c, some, words, block > 0, r, &next, i, panels);
    }
}

/* The sums of an output, (taps, channels) in panels, as weights (channels, taps). line: scratch. */
static void put_weights(const job *j, const chunk *k, const float *sums, int64_t output, float *line)
{
    int64_t nr = j->u->nr, taps = j->p.taps, columns = k->channels * taps;
    for (int64_t c = 0; c < columns; c += nr)
        memcpy(line + c, sums + c * j->rows + output * nr, (size_t)mx_min(nr, columns - c) * sizeof *line);
    int64_t row = k->row + output, channel = k->channel - k->group * j->p.inputs;
    float *to = j->dw + k->group * j->p.outputs * j->p.inputs * taps;
    if (j->swapped) {
        for (int64_t p = 0; p < k->channels; p++)
            to[(channel + p) * j->p.outputs + row] = line[p];
        return;
    }
    if (taps > 1) { /* in the cache, because parts of cache lines would be written to memory slowly */
        mx_array from = {line, MX_F32};
        line += j->columns;
        mx_kernels_current()->conv->turn(taps, k->channels, from, k->channels, taps, line);
    }
    memcpy(to + (row * j->p.inputs + channel) * taps, line, (size_t)columns * sizeof *line);
}

static void run_chunk(const job *j, const chunk *k, char *scratch)
{
    int64_t bytes;
    room r = room_of(j, scratch, &bytes);
    for (int64_t block = 0; block < j->blocks.count; block++)
        add_block(j, k, block, &r);
    for (int64_t o = 0; o < k->rows; o++)
        put_weights(j, k, r.sums, o, r.line);
}

/* The sizes of chunks: as large as the caches allow, and enough of them for the threads. */
static void plan(job *j, int64_t threads)
{
    const mx_conv_pass *p = &j->p;
    int64_t mr = j->u->mr, most = mx_max(COLUMNS / p->taps, 1), share = mx_ceil_div(threads, p->groups);
    int64_t unit = (int64_t)j->u->k_unit * j->u->k_group, positions = p->batch * p->w.out[0] * p->w.out[1];
    j->channels = mx_min(most > PLANES ? most / PLANES * PLANES : most, p->inputs);
    j->rows = mx_min(ROWS / mr, mx_ceil_div(p->outputs, mr)) * mr;
    while (mx_ceil_div(p->inputs, j->channels) * mx_ceil_div(p->outputs, j->rows) < share && j->rows > mr)
        j->rows = mx_ceil_div(j->rows / mr, 2) * mr;
    j->columns = mx_round_up(j->channels * p->taps, j->u->nr);
    j->blocks = mx_conv_blocks_of(&p->w, p->batch, mx_conv_k_block(j->u, positions), unit);
    j->blocks.in_order = true;
    j->joined = j->u->k_group == 2 && p->w.out[1] % 2 == 0 && p->w.stride[1] <= MX_CONV_SLACK &&
                p->taps > p->w.stride[0] * p->w.stride[1]; /* elements are packed more than once */
    j->floats = mx_conv_copy_most(&p->w, &j->blocks);
    (void)room_of(j, NULL, &j->bytes);
}

static void run_all(const job *j, int64_t threads, char *scratch)
{
    const mx_conv_pass *p = &j->p;
    int64_t wide = mx_ceil_div(p->inputs, j->channels), high = mx_ceil_div(p->outputs, j->rows);
#pragma omp parallel if (threads > 1)
    {
        char *own = scratch + omp_get_thread_num() * j->bytes;
        if (j->u->begin)
            j->u->begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < p->groups * wide * high; i++) {
            int64_t channel = i / high % wide * j->channels, row = i % high * j->rows, group = i / high / wide;
            chunk k = {.group = group, .channel = group * p->inputs + channel, .row = row};
            k.channels = mx_min(j->channels, p->inputs - channel);
            k.rows = mx_min(j->rows, p->outputs - row);
            run_chunk(j, &k, own);
        }
        if (j->u->end)
            j->u->end();
    }
}

/* Of points, what fills the panels better becomes the columns: a tenth less work is worth turning the weights. */
static void swap(job *j)
{
    mx_conv_pass *p = &j->p;
    int64_t mr = j->u->mr, nr = j->u->nr, n = p->outputs;
    int64_t now = mx_round_up(n, mr) * mx_round_up(p->inputs, nr);
    int64_t then = mx_round_up(p->inputs, mr) * mx_round_up(n, nr);
    if (!p->in_place || j->planes.x.dtype != j->planes_dy.x.dtype || 10 * then > 9 * now)
        return;
    j->swapped = true;
    mx_conv_planes planes = j->planes;
    j->planes = j->planes_dy;
    j->planes_dy = planes;
    p->outputs = p->inputs;
    p->inputs = n;
}

mx_status mx_conv_product_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads(), pixels = mx_conv_pixels(c);
    job j = {.p = mx_conv_pass_forward(c), .u = mx_conv_micro(x.dtype, dy.dtype), .dw = dw};
    int64_t elements = c->channels_out * mx_conv_taps(c);
    j.planes = (mx_conv_planes){x, pixels, c->channels_in * pixels};
    j.planes_dy = (mx_conv_planes){dy, mx_conv_positions(c), c->channels_out * mx_conv_positions(c)};
    if (c->batch * mx_conv_positions(c) == 0 || elements == 0) {
        memset(dw, 0, (size_t)elements * sizeof *dw);
        return MX_OK;
    }
    swap(&j);
    plan(&j, threads);
    char *scratch;
    MX_TRY(mx_pool_alloc(threads * j.bytes, (void **)&scratch));
    run_all(&j, threads, scratch);
    mx_pool_free(scratch, threads * j.bytes);
    return MX_OK;
}
