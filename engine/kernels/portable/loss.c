#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

static float capped(const mx_loss_row *row, float product)
{
    float z = product * row->logit_scale;
    return row->softcap > 0 ? row->softcap * tanhf(z / row->softcap) : z;
}

float mx_loss_row_portable(const mx_loss_row *row)
{
    float largest = -INFINITY, sum = 0;
    for (int64_t v = 0; v < row->vocab; v++)
        largest = fmaxf(largest, capped(row, row->logits[v]));
    for (int64_t v = 0; v < row->vocab; v++)
        sum += expf(capped(row, row->logits[v]) - largest);
    float lse = largest + logf(sum);
    float loss = (largest - capped(row, row->logits[row->target])) + logf(sum) + row->z_loss * lse * lse;
    if (!row->dlogits)
        return loss;
    for (int64_t v = 0; v < row->vocab; v++) {
        float z = capped(row, row->logits[v]), bent = row->softcap > 0 ? z / row->softcap : 0.0f;
        float d = expf(z - largest) / sum * (1 + 2 * row->z_loss * lse) - (v == row->target ? 1.0f : 0.0f);
        mx_set_float(row->dlogits, v, d * (1 - bent * bent) * row->logit_scale * row->factor, row->dtype);
    }
    return loss;
}
