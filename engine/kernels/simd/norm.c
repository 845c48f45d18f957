/* RMSNorm and LayerNorm of rows, forward and backward (norm.h). */
#include "kernels/context.h"

#include "kernels/norm.h"
#include "kernels/simd/rows.h"

#include <math.h>
#include <string.h>

enum {
    LINE = 32,    /* values of bf16 in a cache line */
    SHARED = 4096 /* from this width on, weights take a large part of the first-level cache: two rows share them */
};

/* The values of a row that are read in pairs of vectors: all whole cache lines of a bf16 row. The rest is read vector
 * by vector. */
MX_INLINE int64_t paired(int64_t width, const bool bf16) { return bf16 ? width / LINE * LINE : width; }

/* Brings weights and sums into the order in which row_get() returns a bf16 row: of each 2 VL values, first those with
 * even index, then those with odd index. A NaN becomes one that row_put() can store. */
static void arrange(float *values, int64_t width)
{
    for (int64_t i = 0; i < paired(width, true); i += 2 * VL) {
        float block[2 * VL];
        for (int64_t j = 0; j < 2 * VL; j++)
            block[j] = isnan(values[i + j]) ? NAN : values[i + j];
        for (int64_t j = 0; j < VL; j++) {
            values[i + j] = block[2 * j];
            values[i + VL + j] = block[2 * j + 1];
        }
    }
}

static void arrange_back(float *values, int64_t width)
{
    for (int64_t i = 0; i < paired(width, true); i += 2 * VL) {
        float block[2 * VL];
        memcpy(block, values + i, sizeof block);
        for (int64_t j = 0; j < VL; j++) {
            values[i + 2 * j] = block[j];
            values[i + 2 * j + 1] = block[VL + j];
        }
    }
}

MX_INLINE vf row_term(vf sum, vf d, const bool squares)
{
    if (squares)
        return vf_fma(d, d, sum);
    return sum + d;
}

/* Sum of (x - shift), or of its squares, over a row. Four sums hide the latency of addition. The last pass that sums
 * prefetches the first half of the next row, the pass that writes the second half. */
MX_INLINE float row_sum(const void *x, int64_t width, float shift, const bool squares, const bool bf16)
{
    vf s = vf_set1(shift), sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        if (squares)
            row_prefetch(x, width + i / 2, 2 * VL, bf16);
        vf v[4];
        row_get(x, i, v, bf16);
        row_get(x, i + 2 * VL, v + 2, bf16);
        for (int u = 0; u < 4; u++)
            sum[u] = row_term(sum[u], v[u] - s, squares);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        vf d = vf_select(vm_first(n), row_load_part(x, i, n, bf16) - s, vf_zero());
        sum[0] = row_term(sum[0], d, squares);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* y = (x - mean) rstd weight + bias. Not as x rstd - mean rstd: that cancels where |mean| is large. */
MX_INLINE vf normalised(vf x, vf weight, vf bias, vf mean, vf rstd, const bool center)
{
    if (center)
        return vf_fma((x - mean) * rstd, weight, bias);
    return x * rstd * weight;
}

MX_INLINE void row_scale(const mx_norm *n, const void *x, void *y, float mean, float rstd, const bool center,
                         const bool bf16, const bool stream)
{
    const float *weight = n->weight, *bias = n->bias;
    vf a = vf_set1(rstd), m = vf_set1(mean), none = vf_zero();
    int64_t i = 0, width = n->width;
    for (const int64_t end = paired(width, bf16); i + 2 * VL <= end; i += 2 * VL) {
        row_prefetch(x, width + (width + i) / 2, VL, bf16);
        vf v[2];
        row_get(x, i, v, bf16);
        for (int u = 0; u < 2; u++)
            v[u] = normalised(v[u], vf_load(weight + i + u * VL), center ? vf_load(bias + i + u * VL) : none, m, a,
                              center);
        row_put(y, i, v, bf16, stream);
    }
    for (; i < width; i += VL) {
        int64_t part = lanes_left(width, i);
        vf v = normalised(row_load_part(x, i, part, bf16), vf_load_part(weight + i, part),
                          center ? vf_load_part(bias + i, part) : none, m, a, center);
        row_store_part(y, i, v, part, bf16);
    }
}

MX_INLINE void forward_rows(const mx_norm *n, int64_t first, int64_t last, const bool center, const bool bf16,
                            const bool stream)
{
    float width = (float)n->width;
    for (int64_t r = first; r < last; r++) {
        const void *x = row_of(n->x, r, n->width, bf16);
        float mean = 0.0f, rstd = 0.0f;
        if (n->features) {
            mean = center ? n->mean[r] : 0.0f;
            rstd = n->rstd[r];
        } else {
            mean = center ? row_sum(x, n->width, 0.0f, false, bf16) / width : 0.0f;
            rstd = 1.0f / sqrtf(row_sum(x, n->width, mean, true, bf16) / width + n->eps);
        }
        row_scale(n, x, row_of_out(n->y, r, n->width, bf16), mean, rstd, center, bf16, stream);
        if (n->features)
            continue;
        if (n->rstd)
            n->rstd[r] = rstd;
        if (center && n->mean)
            n->mean[r] = mean;
    }
}

static void forward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    bool bf16 = mx_is_bf16(n->dtype);
    if (n->center) {
        if (bf16)
            stream ? forward_rows(n, first, last, true, true, true) : forward_rows(n, first, last, true, true, false);
        else
            stream ? forward_rows(n, first, last, true, false, true) : forward_rows(n, first, last, true, false, false);
    } else {
        if (bf16)
            stream ? forward_rows(n, first, last, false, true, true) : forward_rows(n, first, last, false, true, false);
        else
            stream ? forward_rows(n, first, last, false, false, true)
                   : forward_rows(n, first, last, false, false, false);
    }
    _mm_sfence();
}

static void sums(const mx_norm *n, int64_t first, int64_t last, bool squares)
{
    bool bf16 = mx_is_bf16(n->dtype);
    for (int64_t r = first; r < last; r++) {
        float mean = n->mean ? n->mean[r] : 0.0f;
        const void *x = row_of(n->x, r, n->width, bf16);
        if (bf16)
            n->sums[r] = squares ? row_sum(x, n->width, mean, true, true) : row_sum(x, n->width, mean, false, true);
        else
            n->sums[r] = squares ? row_sum(x, n->width, mean, true, false) : row_sum(x, n->width, mean, false, false);
    }
}

/* What the second pass over a row needs, so that dx = dy weight rstd - (x - mean) dot - sum. */
typedef struct row_terms {
    float rstd, mean, dot, sum;
} row_terms;

/* The sums over a row of dy weight (x - mean) and, with `center`, of dy weight. */
typedef struct row_sums {
    float dot, sum;
} row_sums;

/* Of `group` rows from r on, which share what is read of the weights. Rows of x that are `ahead` later are prefetched
 * as they lie in memory, those of dy by the pass that writes. */
MX_INLINE void row_dots(const mx_norm *n, int64_t r, const int group, const int ahead, const bool center,
                        const bool bf16, row_sums *out)
{
    const int64_t width = n->width;
    const float *weight = n->weight;
    const void *x[2], *dy[2];
    vf mean[2], dot[2][2], sum[2][2];
    for (int g = 0; g < group; g++) {
        x[g] = row_of(n->x, r + g, width, bf16);
        dy[g] = row_of(n->dy, r + g, width, bf16);
        mean[g] = vf_set1(center ? n->mean[r + g] : 0.0f);
        for (int u = 0; u < 2; u++)
            dot[g][u] = sum[g][u] = vf_zero();
    }
    int64_t i = 0;
    for (const int64_t end = paired(width, bf16); i + 2 * VL <= end; i += 2 * VL) {
        row_prefetch(x[0], ahead * width + group * i, group * 2 * VL, bf16);
        vf w[2] = {vf_load(weight + i), vf_load(weight + i + VL)};
        for (int g = 0; g < group; g++) {
            vf v[2], d[2];
            row_get(x[g], i, v, bf16);
            row_get(dy[g], i, d, bf16);
            for (int u = 0; u < 2; u++) {
                d[u] = d[u] * w[u];
                dot[g][u] = vf_fma(d[u], v[u] - mean[g], dot[g][u]);
                if (center)
                    sum[g][u] = sum[g][u] + d[u];
            }
        }
    }
    for (; i < width; i += VL) {
        int64_t part = lanes_left(width, i);
        for (int g = 0; g < group; g++) {
            vf d = row_load_part(dy[g], i, part, bf16) * vf_load_part(weight + i, part); /* 0 behind the end */
            dot[g][0] = vf_fma(d, row_load_part(x[g], i, part, bf16) - mean[g], dot[g][0]);
            if (center)
                sum[g][0] = sum[g][0] + d;
        }
    }
    for (int g = 0; g < group; g++)
        out[g] = (row_sums){vf_sum(dot[g][0] + dot[g][1]), center ? vf_sum(sum[g][0] + sum[g][1]) : 0.0f};
}

MX_INLINE void terms_of(const mx_norm *n, int64_t r, const int group, const bool center, const bool bf16,
                        row_terms *terms)
{
    row_sums sums[2];
    if (!n->features && n->width >= SHARED)
        row_dots(n, r, group, group, center, bf16, sums);
    for (int g = 0; g < group && !n->features && n->width < SHARED; g++)
        row_dots(n, r + g, 1, group, center, bf16, sums + g);
    for (int g = 0; g < group; g++) {
        row_sums s = n->features ? (row_sums){n->sums[r + g], center ? n->sums[n->rows + r + g] : 0.0f} : sums[g];
        float rstd = n->rstd[r + g], features = (float)(n->features ? n->features : n->width);
        terms[g] = (row_terms){.rstd = rstd,
                               .mean = center ? n->mean[r + g] : 0.0f,
                               .dot = rstd * (rstd * (rstd * s.dot / features)),
                               .sum = rstd * s.sum / features};
    }
}

MX_INLINE void sum_grads(const mx_norm *n, int64_t first, int64_t last, const bool center, const bool bf16)
{
    for (int64_t r = first; r < last; r++) {
        row_sums s;
        row_dots(n, r, 1, 1, center, bf16, &s);
        n->sums[r] = s.dot;
        if (center)
            n->sums[n->rows + r] = s.sum;
    }
}

static void grad_sums(const mx_norm *n, int64_t first, int64_t last)
{
    bool bf16 = mx_is_bf16(n->dtype);
    if (n->center)
        bf16 ? sum_grads(n, first, last, true, true) : sum_grads(n, first, last, true, false);
    else
        bf16 ? sum_grads(n, first, last, false, true) : sum_grads(n, first, last, false, false);
}

/* One vector of one row: adds to the weight gradients and returns dx. */
MX_INLINE vf column_step(vf x, vf dy, vf weight, const row_terms *t, const bool center, vf *dweight, vf *dbias)
{
    vf scaled = dy * vf_set1(t->rstd), slope = vf_set1(-t->dot);
    if (!center) {
        *dweight = vf_fma(scaled, x, *dweight);
        return vf_fma(scaled, weight, x * slope);
    }
    x = x - vf_set1(t->mean);
    *dweight = vf_fma(scaled, x, *dweight);
    *dbias = *dbias + dy;
    return vf_fma(scaled, weight, vf_fma(x, slope, vf_set1(-t->sum)));
}

/* One or two rows (`group`) at a time: the weight gradients are read and written once for both. With four rows, which
 * are often a multiple of 4 KiB apart, their cache lines would evict each other from the first-level cache. */
MX_INLINE void backward_group(const mx_norm *n, int64_t r, const int group, const bool center, const bool bf16,
                              const bool stream)
{
    row_terms terms[2];
    terms_of(n, r, group, center, bf16, terms);
    const float *weight = n->weight;
    const void *first_dy = row_of(n->dy, r, n->width, bf16);
    const int unit = bf16 ? LINE / VL : 2; /* vectors: whole cache lines of a row, then of the next */
    int64_t i = 0;
    for (; i + unit * VL <= n->width; i += unit * VL) {
        row_prefetch(first_dy, group * (n->width + i), group * unit * VL, bf16);
        vf dw[4], db[4];
        for (int u = 0; u < unit; u++) {
            dw[u] = vf_load(n->dweight + i + u * VL);
            db[u] = vf_zero();
        }
        for (int g = 0; g < group; g++) {
            const void *x = row_of(n->x, r + g, n->width, bf16), *dy = row_of(n->dy, r + g, n->width, bf16);
            for (int u = 0; u < unit; u += 2) {
                vf v[2], d[2];
                row_get(x, i + u * VL, v, bf16);
                row_get(dy, i + u * VL, d, bf16);
                for (int k = 0; k < 2; k++)
                    d[k] = column_step(v[k], d[k], vf_load(weight + i + (u + k) * VL), &terms[g], center, &dw[u + k],
                                       &db[u + k]);
                row_put(row_of_out(n->dx, r + g, n->width, bf16), i + u * VL, d, bf16, stream);
            }
        }
        for (int u = 0; u < unit; u++) {
            vf_store(n->dweight + i + u * VL, dw[u]);
            if (center && n->dbias)
                vf_store(n->dbias + i + u * VL, vf_load(n->dbias + i + u * VL) + db[u]);
        }
    }
    for (; i < n->width; i += VL) {
        int64_t part = lanes_left(n->width, i);
        vf w = vf_load_part(weight + i, part), dw = vf_load_part(n->dweight + i, part), db = vf_zero();
        for (int g = 0; g < group; g++) {
            vf x = row_load_part(row_of(n->x, r + g, n->width, bf16), i, part, bf16);
            vf dy = row_load_part(row_of(n->dy, r + g, n->width, bf16), i, part, bf16);
            vf d = column_step(x, dy, w, &terms[g], center, &dw, &db);
            row_store_part(row_of_out(n->dx, r + g, n->width, bf16), i, d, part, bf16);
        }
        vf_store_part(n->dweight + i, dw, part);
        if (center && n->dbias)
            vf_store_part(n->dbias + i, vf_load_part(n->dbias + i, part) + db, part);
    }
}

MX_INLINE void backward_rows(const mx_norm *n, int64_t first, int64_t last, const bool center, const bool bf16,
                             const bool stream)
{
    int64_t r = first;
    for (; r + 2 <= last; r += 2)
        backward_group(n, r, 2, center, bf16, stream);
    for (; r < last; r++)
        backward_group(n, r, 1, center, bf16, stream);
}

static void backward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    bool bf16 = mx_is_bf16(n->dtype);
    if (n->center) {
        if (bf16)
            stream ? backward_rows(n, first, last, true, true, true) : backward_rows(n, first, last, true, true, false);
        else
            stream ? backward_rows(n, first, last, true, false, true)
                   : backward_rows(n, first, last, true, false, false);
    } else {
        if (bf16)
            stream ? backward_rows(n, first, last, false, true, true)
                   : backward_rows(n, first, last, false, true, false);
        else
            stream ? backward_rows(n, first, last, false, false, true)
                   : backward_rows(n, first, last, false, false, false);
    }
    _mm_sfence();
}

const mx_norm_paths MX_SIMD_NAME(mx_norm) = {forward, backward, sums, grad_sums, arrange, arrange_back};
