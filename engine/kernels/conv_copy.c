#include "kernels/conv_internal.h"

#include "kernels/context.h"

#include <string.h>

enum { LONG_ROW = 512 }; /* rows of more results are cut */
enum { LINE = 64 };      /* bytes */

mx_conv_blocks mx_conv_blocks_of(const mx_windows *w, int64_t batch, int64_t most, int64_t unit)
{
    int64_t width = w->out[1], rows = batch * w->out[0], length = width > LONG_ROW ? width : rows * width;
    int64_t pieces = mx_ceil_div(length, most), size = mx_round_up(mx_ceil_div(length, pieces), unit);
    pieces = mx_ceil_div(length, size);
    return width > LONG_ROW ? (mx_conv_blocks){size, pieces, rows * pieces, false}
                            : (mx_conv_blocks){size, 0, pieces, false};
}

static int64_t lines_of(const mx_windows *w, int64_t rows)
{
    return (rows - 1) * w->stride[0] + w->most[0] - w->least[0] + 1;
}

/* Elements of a row that so many results meet. */
static int64_t met_by(const mx_windows *w, int64_t columns)
{
    return (columns - 1) * w->stride[1] + w->most[1] - w->least[1] + 1;
}

static int64_t rests_of(const mx_windows *w, const mx_conv_blocks *blocks)
{
    return blocks->in_order ? 1 : w->stride[1];
}

static int64_t phase_of(const mx_windows *w, int64_t columns, int64_t rests)
{
    int64_t n = met_by(w, columns);
    return rests == 1 ? n : mx_round_up(mx_ceil_div(n, rests), 16);
}

/* Columns j0 to before j0 + columns of each row of results. */
static mx_conv_copy copy_of(const mx_windows *w, int64_t first, int64_t count, int64_t j0, int64_t columns,
                            int64_t rests)
{
    mx_conv_copy c = {.w = *w, .first = first, .count = count, .j0 = j0, .columns = columns, .rests = rests};
    int64_t positions = w->out[0] * w->out[1], last = first + count - 1, last_row = last % positions / w->out[1];
    c.image = first / positions;
    c.images = last / positions - c.image + 1;
    c.i0 = first % positions / w->out[1];
    c.step = w->stride[1] / rests;
    c.phase = phase_of(w, columns, rests);
    c.row = c.phase * rests;
    c.lines_before = lines_of(w, (c.images == 1 ? last_row + 1 : w->out[0]) - c.i0);
    c.lines = c.lines_before;
    if (c.images > 1)
        c.lines += (c.images - 2) * lines_of(w, w->out[0]) + lines_of(w, last_row + 1);
    return c;
}

mx_conv_copy mx_conv_copy_of(const mx_windows *w, int64_t batch, const mx_conv_blocks *blocks, int64_t block)
{
    int64_t width = w->out[1], size = blocks->size, first = block * size;
    if (blocks->pieces == 0)
        return copy_of(w, first, mx_min(size, batch * w->out[0] * width - first), 0, width, rests_of(w, blocks));
    int64_t j0 = block % blocks->pieces * size, columns = mx_min(size, width - j0);
    return copy_of(w, block / blocks->pieces * width + j0, columns, j0, columns, rests_of(w, blocks));
}

mx_conv_copy mx_conv_copy_between(const mx_windows *w, int64_t first, int64_t count)
{
    return copy_of(w, first, count, 0, w->out[1], 1);
}

int64_t mx_conv_copy_most(const mx_windows *w, const mx_conv_blocks *blocks)
{
    int64_t rests = rests_of(w, blocks);
    if (blocks->pieces > 0)
        return lines_of(w, 1) * phase_of(w, blocks->size, rests) * rests;
    int64_t images = (blocks->size - 1) / (w->out[0] * w->out[1]) + 2,
            rows = (blocks->size - 1) / w->out[1] + 1 + images;
    int64_t lines = mx_min(images * lines_of(w, w->out[0]), images * lines_of(w, 1) + rows * w->stride[0]);
    return lines * phase_of(w, w->out[1], rests) * rests;
}

/* The rows of copies that image n of the block ends before, and the row of the image that its first row is. */
static int64_t lines_to(const mx_conv_copy *c, int64_t n)
{
    return n == c->images - 1 ? c->lines : c->lines_before + n * lines_of(&c->w, c->w.out[0]);
}

static int64_t first_line(const mx_conv_copy *c, int64_t n)
{
    return (n == 0 ? c->i0 * c->w.stride[0] : 0) + c->w.least[0];
}

static mx_array row_at(const mx_conv_copy *c, const mx_conv_planes *p, int64_t plane, int64_t n, int64_t y)
{
    return mx_conv_part(p->x, plane * p->step + (c->image + n) * p->image_step + y * c->w.in[1]);
}

void mx_conv_copy_fill(const mx_conv_copy *c, const mx_conv_planes *planes, int64_t plane, float *copy)
{
    const mx_windows *w = &c->w;
    const mx_row_copy row = {.n = met_by(w, c->columns),
                             .first = c->j0 * w->stride[1] + w->least[1],
                             .in = w->in[1],
                             .step = c->rests,
                             .phase = c->phase};
    int64_t line = 0;
    for (int64_t n = 0; n < c->images; n++) {
        int64_t top = first_line(c, n), count = lines_to(c, n) - line;
        mx_fill_rows(&row, row_at(c, planes, plane, n, 0), w->in[0], top, top + count, copy, c->row);
        copy += count * c->row;
        line += count;
    }
}

/* What a copy meets of a plane of image n: its rows. */
static mx_ahead piece_of(const mx_conv_asking *a, int64_t plane, int64_t n)
{
    const mx_conv_copy *c = &a->copy;
    const mx_windows *w = &c->w;
    int64_t bytes = (int64_t)mx_dtype_bytes(a->planes->x.dtype), top = first_line(c, n);
    int64_t left = c->j0 * w->stride[1] + w->least[1], right = mx_min(left + met_by(w, c->columns), w->in[1]);
    int64_t last = mx_min(top + lines_to(c, n) - (n > 0 ? lines_to(c, n - 1) : 0), w->in[0]);
    left = mx_max(left, 0);
    top = mx_max(top, 0);
    const char *row = row_at(c, a->planes, plane, n, top).data;
    return (mx_ahead){row + left * bytes, mx_max(right - left, 0) * bytes, w->in[1] * bytes, mx_max(last - top, 0)};
}

mx_ahead *mx_conv_list(mx_conv_asking *a, int64_t i, int64_t n, mx_ahead *list)
{
    int64_t end = mx_ceil_div(a->n_planes * a->copy.images * i, n);
    for (int64_t entries = 0; entries < MX_CONV_AHEAD && a->done < end; entries++) {
        int64_t image = a->done / a->n_planes, plane = a->done % a->n_planes;
        mx_ahead piece = piece_of(a, a->begin + plane, image);
        int64_t beyond = (int64_t)((uintptr_t)piece.at % LINE), some = 1;
        if (piece.rows == 1 || piece.bytes == piece.step) { /* neighbours: pieces of several planes are rows */
            some = mx_min(a->n_planes - plane, end - a->done);
            piece.bytes *= piece.rows;
            piece.step = a->planes->step * (int64_t)mx_dtype_bytes(a->planes->x.dtype);
            piece.rows = piece.bytes > 0 ? some : 0;
        }
        a->done += some;
        if (piece.rows > 0)
            *list++ = (mx_ahead){piece.at - beyond, piece.bytes + beyond, piece.step, piece.rows};
    }
    *list = (mx_ahead){0};
    return list;
}

void mx_conv_ask(mx_conv_asking *a, int64_t i, int64_t n)
{
    mx_ahead list[MX_CONV_AHEAD + 1];
    while (a->done * n < a->n_planes * a->copy.images * i) {
        mx_conv_list(a, i, n, list);
        for (const mx_ahead *x = list; x->rows > 0; x++)
            for (int64_t r = 0; r < x->rows; r++)
                for (int64_t b = 0; b < x->bytes; b += LINE)
                    __builtin_prefetch(x->at + r * x->step + b, 0, 3);
    }
}

int64_t mx_conv_copy_runs(const mx_conv_copy *c, int64_t at, int64_t n, mx_conv_run *runs)
{
    const mx_windows *w = &c->w;
    int64_t positions = w->out[0] * w->out[1], count = 0;
    for (int64_t to = 0; to < n;) {
        int64_t position = c->first + at + to, image = position / positions - c->image;
        int64_t i = position % positions / w->out[1], j = position % w->out[1];
        int64_t line = image == 0 ? (i - c->i0) * w->stride[0] : lines_to(c, image - 1) + i * w->stride[0];
        int64_t length = mx_min(w->out[1] - j, n - to);
        runs[count++] = (mx_conv_run){line * c->row + (j - c->j0) * c->step, to, length};
        to += length;
    }
    return count;
}

int64_t mx_conv_copy_places(const mx_conv_copy *c, const mx_conv_planes *planes, int64_t at, int64_t n,
                            mx_conv_run *runs)
{
    int64_t positions = c->w.out[0] * c->w.out[1], count = 0;
    for (int64_t to = 0; to < n; to += runs[count++].n) {
        int64_t position = c->first + at + to, image = position / positions;
        position -= image * positions;
        runs[count] = (mx_conv_run){image * planes->image_step + position, to, mx_min(positions - position, n - to)};
    }
    return count;
}

/* ---- packed panels ---- */

/* to[i] = from[at[i]] */
void mx_conv_pick(const void *from, size_t bytes, int64_t n, const int64_t *at, void *to)
{
    if (bytes == 4)
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = ((const uint32_t *)from)[at[i]];
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[at[i]];
}

const mx_micro *mx_conv_micro(mx_dtype a, mx_dtype b)
{
    const mx_kernels *kernels = mx_kernels_current();
    return mx_is_bf16(a) || mx_is_bf16(b) ? kernels->micro : kernels->micro_f32;
}

static int64_t part_width(const mx_micro *u) { return u->k_unit > 1 ? MX_CONV_TILE : u->nr; }

void mx_conv_panel_cut(const mx_micro *u, const mx_conv_run *runs, int64_t n_runs, mx_conv_panel *panel)
{
    int64_t width = part_width(u);
    for (int64_t q = 0; q * width < u->nr; q++)
        panel->n_runs[q] = 0;
    for (const mx_conv_run *r = runs; r < runs + n_runs; r++)
        for (int64_t i = 0; i < r->n;) {
            int64_t q = (r->to + i) / width, to = (r->to + i) % width, n = mx_min(r->n - i, width - to);
            panel->runs[q][panel->n_runs[q]++] = (mx_conv_run){r->from + i, to, n};
            i += n;
        }
}

/* From `copy` at at[e], with `joined` words at at[w], or if it is NULL from x, whose elements are `step` apart. */
static void pack_panel(const mx_micro *u, const mx_conv_panel *panel, const float *copy, const int64_t *at, bool joined,
                       mx_array x, int64_t step, int64_t k, uint32_t *packed)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t width = part_width(u), words = u->k_unit > 1 ? u->k_unit : mx_conv_words(u, k);
    bool pairs = u->k_group == 2;
    for (int64_t e = 0; e < k; e += words * u->k_group)
        for (int64_t q = 0; q * width < u->nr; q++, packed += words * width) {
            int64_t n = mx_min(words * u->k_group, k - e), lines = mx_ceil_div(n, u->k_group);
            if (joined)
                paths->gather(copy, lines, at + e / 2, panel->runs[q], panel->n_runs[q], false, width, packed);
            else if (copy)
                paths->gather(copy, n, at + e, panel->runs[q], panel->n_runs[q], pairs, width, packed);
            else
                paths->take(mx_conv_part(x, e * step), n, step, panel->runs[q], panel->n_runs[q], pairs, width, packed);
            memset(packed + lines * width, 0, (size_t)((words - lines) * width) * sizeof *packed);
        }
}

void mx_conv_panel_pack(const mx_micro *u, const mx_conv_panel *panel, const float *copy, int64_t k, const int64_t *at,
                        bool joined, uint32_t *packed)
{
    pack_panel(u, panel, copy, at, joined, (mx_array){0}, 0, k, packed);
}

void mx_conv_panel_take(const mx_micro *u, const mx_conv_panel *panel, mx_array x, int64_t k, int64_t step,
                        uint32_t *packed)
{
    pack_panel(u, panel, NULL, NULL, false, x, step, k, packed);
}
