/* What the cross entropies share: of a whole vocabulary (loss.c) and of one that is split over ranks (split_loss.c has
 * its steps, mesh/loss.c applies them). */
#ifndef MX_OPS_LOSS_H
#define MX_OPS_LOSS_H

#include "kernels/loss.h"
#include "ops/op.h"

/* Inputs and outputs of both. The gradients are hidden outputs; one that is not needed has no elements. */
enum { MX_LOSS_H, MX_LOSS_WEIGHT, MX_LOSS_TARGETS, MX_LOSS_MASK };
enum { MX_LOSS_MEAN, MX_LOSS_DH, MX_LOSS_DWEIGHT, MX_LOSS_OUTPUTS };
#define MX_LOSS_INPUTS ((const char *const[]){"h", "weight", "targets", "mask?", NULL})

/* The first member of the attributes of both. */
typedef struct mx_cross_entropy_attr {
    double z_loss, softcap, logit_scale, normalizer;
    bool trans;
} mx_cross_entropy_attr;

/* clang-format off */
#define MX_CROSS_ENTROPY_ATTRS \
    {"z_loss", MX_ATTR_FLOAT, offsetof(mx_cross_entropy_attr, z_loss), 0, NULL, \
     "adds z_loss * log(sum of e^logits)^2"}, \
    {"softcap", MX_ATTR_FLOAT, offsetof(mx_cross_entropy_attr, softcap), 0, NULL, \
     "logits become softcap * tanh(logits / softcap)"}, \
    {"logit_scale", MX_ATTR_FLOAT, offsetof(mx_cross_entropy_attr, logit_scale), 1, NULL, \
     "factor of the logits, before the cap"}, \
    {"trans", MX_ATTR_BOOL, offsetof(mx_cross_entropy_attr, trans), 1, NULL, \
     "weight is (V, E), like an embedding; otherwise (E, V)"}, \
    {"normalizer", MX_ATTR_FLOAT, offsetof(mx_cross_entropy_attr, normalizer), 0, NULL, \
     "the sum over tokens is divided by it; 0: the number of tokens that count"}
/* clang-format on */

/* Checks the inputs named above and the attributes. */
mx_status mx_cross_entropy_check(const mx_call *call);

/* Also makes the outputs. */
mx_status mx_cross_entropy_infer(mx_call *call);

/* Hands on the gradients that the forward pass made. */
mx_status mx_cross_entropy_vjp(mx_vjp *v);

/* Whether the gradient of input i, MX_LOSS_H or MX_LOSS_WEIGHT, is made. */
bool mx_cross_entropy_makes(const mx_call *call, int i);

/* The arguments of the kernel, but for the results; `in`: the inputs of either. On a device without values, only sizes
 * are of use. */
mx_cross_entropy mx_cross_entropy_arguments(const mx_cross_entropy_attr *attr, mx_tensor *const in[]);

/* MX_ERR_VALUE if a token that counts has a target outside of a vocabulary of `vocab` ids. */
mx_status mx_cross_entropy_check_targets(const mx_call *call, const mx_cross_entropy *c, const mx_tensor *targets,
                                         int64_t vocab);

/* For the steps of the split one. */
typedef struct mx_loss_step_attr {
    mx_cross_entropy_attr loss;
    int64_t vocab;       /* ids of the whole vocabulary */
    int64_t first_id;    /* of this rank's part */
    int64_t first, rows; /* the tokens of the step */
} mx_loss_step_attr;

#endif
