#include "kernels/context.h"

#include "core/element.h"
#include "kernels/loss.h"

#include <math.h>

static mx_loss_sums sums(const mx_loss_row *row)
{
    mx_loss_sums s = {.largest = -INFINITY};
    float scale = row->logit_scale;
    for (int64_t v = 0; v < row->vocab; v++) {
        if (row->softcap > 0)
            row->logits[v] = row->softcap * tanhf(scale * row->logits[v] / row->softcap);
        s.largest = fmaxf(s.largest, row->softcap > 0 ? row->logits[v] : scale * row->logits[v]);
    }
    scale = row->softcap > 0 ? 1 : scale;
    for (int64_t v = 0; v < row->vocab; v++)
        s.sum += expf(scale * row->logits[v] - s.largest);
    s.target = row->target < 0 ? 0 : scale * row->logits[row->target];
    return s;
}

static void gradient(const mx_loss_row *row, const mx_loss_sums *all)
{
    float scale = row->softcap > 0 ? 1 : row->logit_scale, lse = all->largest + logf(all->sum);
    for (int64_t v = 0; v < row->vocab; v++) {
        float z = v == row->target ? all->target : scale * row->logits[v];
        float bent = row->softcap > 0 ? z / row->softcap : 0.0f;
        float d = expf(z - all->largest) / all->sum * (1 + 2 * row->z_loss * lse) - (v == row->target ? 1.0f : 0.0f);
        mx_set_float(row->dlogits, v, d * (1 - bent * bent) * row->logit_scale * row->factor, row->dtype);
    }
}

const mx_loss_paths mx_loss_portable = {.sums = sums, .gradient = gradient};
