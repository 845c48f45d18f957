#include "sim/chip.h"

#include "ops/attention.h"
#include "ops/loss.h"
#include "ops/rows.h"
#include "ops/table.h"

#include <math.h>

/* ---- matrix products ---- */

static double tiles(double n, int tile) { return ceil(n / tile) * tile; }

/* FLOPs in which multiprocessors could have computed a product: whole waves of whole tiles of m_tile by n_tile. */
static double wave_flops(const mx_sim_chip *chip, const mx_cost *cost, int m_tile, int n_tile)
{
    double units = chip->multiprocessors, products = cost->flops / (2 * cost->m * cost->n * cost->k);
    double n_tiles = products * ceil(cost->m / m_tile) * ceil(cost->n / n_tile);
    double parts = fmax(1, floor(units / n_tiles)); /* of the depth */
    double waves = ceil(n_tiles * parts / units);
    return waves * units * m_tile * n_tile * 2 * tiles(cost->k, chip->tile) / parts;
}

static double padded_flops(const mx_sim_chip *chip, const mx_cost *cost)
{
    double real = cost->m * cost->n * cost->k;
    if (real == 0)
        return cost->flops;
    const int *sides = chip->product_tile;
    if (chip->multiprocessors > 0)
        return fmin(wave_flops(chip, cost, sides[0], sides[1]), wave_flops(chip, cost, sides[1], sides[0]));
    return cost->flops * tiles(cost->m, 8) * tiles(cost->n, chip->tile) * tiles(cost->k, chip->tile) / real;
}

/* FLOPs of a grouped product; 0: the operation is another. Its kernel has tiles of `group_tile` rows in the order of
 * all rows. A tile in which a group ends and another begins is computed once for each (MaxText, megablox/backend.py,
 * make_group_metadata); groups rarely end with a tile. */
static double grouped_flops(const mx_sim_chip *chip, const mx_call *call, const mx_cost *cost)
{
    bool adds = call->op == &mx_op_grouped_matmul_acc, sums = adds || call->op == &mx_op_grouped_matmul_grad;
    if (chip->group_tile == 0 ||
        (!sums && call->op != &mx_op_grouped_matmul && call->op != &mx_op_scaled_grouped_matmul))
        return 0;
    sums = sums || call->out[0]->shape.n_dims == 3;
    double rows = (double)call->in[adds ? 1 : 0]->shape.size[0], each = sums ? cost->k : cost->m;
    double groups = each > 0 ? rows / each : 0, tile = fmin(chip->group_tile, rows);
    double visited = rows > 0 ? (ceil(rows / tile) + groups - 1) * tile : 0;
    return 2 * visited * tiles(cost->n, chip->tile) * tiles(sums ? cost->m : cost->k, chip->tile);
}

/* Of two operands of codes; 0: the chip multiplies them as bf16. */
static double peak_of_codes(const mx_sim_chip *chip, const mx_call *call)
{
    if (call->op == &mx_op_nvfp4_product)
        return chip->f4_flops > 0 ? chip->f4_flops : chip->peak_flops[MX_BF16];
    mx_dtype a = call->in[0]->dtype, b = call->n_in > 1 && call->in[1] ? call->in[1]->dtype : MX_F32;
    if (!mx_dtype_is_code(a) || !mx_dtype_is_code(b) || (a == MX_I8) != (b == MX_I8))
        return 0;
    bool amd = a == MX_E4M3FNUZ || a == MX_E5M2FNUZ;
    if (amd != (b == MX_E4M3FNUZ || b == MX_E5M2FNUZ))
        return 0;
    return chip->peak_flops[a == MX_I8 ? MX_I8 : amd ? MX_E4M3FNUZ : MX_E4M3];
}

/* Seconds of a product in which the matrix unit waits: for its first blocks, and until its last block is written. */
static double waiting_seconds(const mx_sim_chip *chip, const mx_cost *cost)
{
    if (chip->product_block == 0 || cost->m * cost->n * cost->k == 0)
        return chip->product_s;
    double side = chip->product_block, m = fmin(cost->m, side), n = fmin(cost->n, side), k = fmin(cost->k, side);
    return chip->product_s + (double)mx_dtype_bytes(MX_BF16) * (m * k + k * n + m * n) / mx_sim_memory_rate(chip);
}

static double peak_of(const mx_sim_chip *chip, const mx_call *call)
{
    if (peak_of_codes(chip, call) > 0)
        return peak_of_codes(chip, call);
    mx_dtype dtype = MX_F32;
    for (int i = 0; i < call->n_in && i < 2; i++)
        if (call->in[i] && (call->in[i]->dtype == MX_BF16 || mx_dtype_is_code(call->in[i]->dtype)))
            dtype = MX_BF16;
    double peak = chip->peak_flops[dtype];
    return peak > 0 ? peak : chip->peak_flops[MX_F32];
}

static double vector_seconds(const mx_sim_chip *chip, double operations)
{
    return chip->vector_flops > 0 ? operations / chip->vector_flops : 0;
}

/* ---- attention ---- */

/* Operations of the vector unit for a score: in the forward pass mask (2), maximum (unless it is fixed), difference,
 * base-2 exponential (2), sum, conversion; in a backward kernel mask (2), difference, exponential (2), two for the
 * gradient of the softmax, two conversions. */
enum { FORWARD_OPS = 8, BACKWARD_OPS = 9 };

/* Comparing the numbers of documents of a score's query and key, and combining the result with the other masks (JAX,
 * splash_attention_kernel.py, whose grid knows masks by position only). */
enum { DOCUMENT_OPS = 2 };

/* The features of an input, q or v, filled up to tiles. */
static double width_of(const mx_sim_chip *chip, const mx_call *call, int input)
{
    return tiles((double)call->in[input]->shape.size[3], chip->tile);
}

/* The products of a kernel: so many of the width of q and k, and of that of v. */
typedef struct products {
    int key, value;
} products;

/* Seconds of a kernel with these products per score. */
static double kernel_seconds(const mx_sim_chip *chip, const mx_call *call, mx_blocks blocks, products n, int ops)
{
    const mx_attention_kernel *kernel = &chip->attention;
    double scores = mx_attention_block_pairs(call, blocks.q, blocks.kv, kernel->skips_documents ? kernel->document : 0);
    ops += kernel->document > 0 && !kernel->skips_documents ? DOCUMENT_OPS : 0;
    double queries = (double)call->in[0]->shape.size[1], keys = (double)call->in[1]->shape.size[1];
    double steps = scores > 0 ? scores / (fmin((double)blocks.q, queries) * fmin((double)blocks.kv, keys)) : 0;
    double width = n.key * width_of(chip, call, 0) + n.value * width_of(chip, call, 2);
    double matrix_s = scores * 2 * width / peak_of(chip, call);
    double arithmetic_s = fmax(matrix_s, vector_seconds(chip, scores * ops)) / chip->attention_efficiency;
    return arithmetic_s + steps * chip->attention_step_s;
}

/* Seconds with the scores in memory: of each product the larger of its arithmetic and its traffic, which is 4 bytes a
 * score for each f32 array that it reads or writes, and of the passes of the softmax their traffic. Forward: q k^T
 * writes scores; the softmax reads them for their maximum, and again for its sum; the product with v reads them a third
 * time, and computes probabilities as it does. Backward, with the scores still in memory: dv = p^T dout reads scores;
 * dout v^T writes the gradient of p; a pass reads both for the sums of a row; dq and dk read both. */
static double stored_seconds(const mx_sim_chip *chip, const mx_call *call, bool forward)
{
    static const int arrays[][4] = {{1, 1, 2, 2}, {1, 1}}; /* backward, forward */
    static const int inputs[][4] = {{2, 2, 0, 0}, {0, 2}}; /* that have the width of a product */
    int n = forward ? 2 : 4, passes = 2;
    double scores = mx_attention_block_pairs(call, 0, 0, 0), array_s = 4 * scores / mx_sim_memory_rate(chip);
    double score_s = 2 * scores / (peak_of(chip, call) * chip->matrix_efficiency), seconds = passes * array_s;
    for (int i = 0; i < n; i++)
        seconds += fmax(score_s * width_of(chip, call, inputs[forward][i]), arrays[forward][i] * array_s);
    return seconds;
}

/* What the kernel for all gradients needs besides its arithmetic (JAX, splash_attention_kernel.py): its grid visits the
 * blocks that the mask leaves out, too, and it writes the gradient of the queries once for each block of keys; a pass
 * sums these afterwards. Kernels of a GPU's library add to one gradient. */
static double fused_seconds(const mx_sim_chip *chip, const mx_call *call)
{
    if (chip->library_products)
        return 0;
    mx_blocks blocks = chip->attention.dkv;
    const int64_t *q = call->in[0]->shape.size;
    double queries = (double)q[1], keys = (double)call->in[1]->shape.size[1];
    double block_q = fmin((double)blocks.q, queries), block_kv = fmin((double)blocks.kv, keys);
    double left_out = (double)(q[0] * q[2]) * queries * keys - mx_attention_block_pairs(call, blocks.q, blocks.kv, 0);
    double steps = block_q * block_kv > 0 ? fmax(0, left_out) / (block_q * block_kv) : 0;
    double parts = block_kv > 1 ? ceil(keys / block_kv) - 1 : 0; /* blocks of 1: a chip without blocks */
    return steps * chip->attention_step_s + parts * (double)mx_bytes(call->in[0]) / mx_sim_memory_rate(chip);
}

static double attention_seconds(const mx_sim_chip *chip, const mx_call *call)
{
    const mx_attention_kernel *kernel = &chip->attention;
    bool forward = call->op == &mx_op_attention;
    if (kernel->scores_in_memory)
        return stored_seconds(chip, call, forward);
    if (forward)
        return kernel_seconds(chip, call, kernel->forward, (products){1, 1},
                              FORWARD_OPS - (kernel->fixed_maximum ? 1 : 0));
    if (kernel->fused_backward)
        return kernel_seconds(chip, call, kernel->dkv, (products){3, 2}, BACKWARD_OPS) + fused_seconds(chip, call);
    return kernel_seconds(chip, call, kernel->dkv, (products){2, 2}, BACKWARD_OPS) +
           kernel_seconds(chip, call, kernel->dq, (products){2, 1}, BACKWARD_OPS);
}

/* ---- experts ---- */

/* A product of a mask (tokens of a sequence, slots of its experts) with tokens or rows, for `sequences`. */
typedef struct masked {
    double products, sequences, tokens, slots, width;
} masked;

/* The products with masks of an operation on tokens (sequences, tokens, width); none of it if these are no sequences:
 * then single weights move, or rows that stay with their expert. The gradient of a weighted sum has one product for the
 * rows and one for the weights. */
static masked masked_of(const mx_call *call)
{
    bool sums = call->op == &mx_op_moe_combine || call->op == &mx_op_moe_combine_grad;
    if ((!sums && call->op != &mx_op_moe_gather) || call->in[2]->shape.n_dims != 3)
        return (masked){0};
    const int64_t *place = call->in[2]->shape.size;
    double sequences = (double)place[0];
    return (masked){.products = call->op == &mx_op_moe_combine_grad ? 2 : 1,
                    .sequences = sequences,
                    .tokens = (double)place[1],
                    .slots = (double)mx_count(call->in[1]) / fmax(1, sequences),
                    .width = (double)mx_row_width(call->in[0])};
}

/* Bytes of rows that a compiled step moves beside those that the operation reads and writes: a gather brings the rows
 * into the order of the tokens, and the sum over a token's experts reads what it wrote (MaxText, layers/moe.py,
 * unpermute); backward the same the other way. */
static double unsorted_bytes(const mx_call *call)
{
    return masked_of(call).products > 0 && call->op != &mx_op_moe_gather ? 2 * (double)mx_bytes(call->in[0]) : 0;
}

static double masked_flops(const mx_sim_chip *chip, const masked *m)
{
    return 2 * m->products * m->sequences * tiles(m->tokens, chip->tile) * tiles(m->slots, chip->tile) *
           tiles(m->width, chip->tile);
}

static double mask_bytes(const masked *m)
{
    return m->products * m->sequences * m->tokens * m->slots * (double)mx_dtype_bytes(MX_BF16);
}

/* ---- vocabulary ---- */

/* FLOPs of an embedding, or of its gradient, as a product with one-hot vectors; 0: the operation is another. */
static double one_hot_flops(const mx_sim_chip *chip, const mx_call *call)
{
    const mx_tensor *table = NULL, *ids = NULL;
    if (call->op == &mx_op_embedding || call->op == &mx_op_embedding_acc)
        table = call->in[0], ids = call->in[1];
    else if (call->op == &mx_op_embedding_grad)
        table = call->out[0], ids = call->in[0];
    if (!table)
        return 0;
    double vocab = tiles((double)table->shape.size[0], chip->tile), width = (double)table->shape.size[1];
    return 2 * (double)mx_count(ids) * vocab * tiles(width, chip->tile);
}

/* The number of logits of a loss, or of a chunk of one whose vocabulary is split; 0: the operation is another. */
static double logits_of(const mx_call *call, const mx_cost *cost)
{
    if (call->op == &mx_op_cross_entropy_logits)
        return cost->m * cost->n;
    if (call->op != &mx_op_cross_entropy)
        return 0;
    double width = (double)mx_row_width(call->in[MX_LOSS_H]), table = (double)mx_count(call->in[MX_LOSS_WEIGHT]);
    return width > 0 ? (double)mx_count(call->in[MX_LOSS_H]) / width * (table / width) : 0;
}

/* Memory traffic of a logit that backward computes again: f32, written and read. */
enum { LOGIT_AGAIN_BYTES = 8 };

/* FLOPs of computing these logits once. */
static double logit_flops(const mx_call *call, const mx_cost *cost)
{
    double logits = logits_of(call, cost);
    return logits > 0 ? 2 * logits * (double)mx_row_width(call->in[MX_LOSS_H]) : 0;
}

/* ---- what a compiler does not fuse ---- */

/* Bytes that an operation reads again because its reductions are kernels of their own: a norm reads x once for the
 * statistics and again for the result; its gradient reads x and dy for the sums of rows, for dx and for the sums of
 * columns. The first reading is part of the operation's cost. */
static double repeated_bytes(const mx_call *call)
{
    if (call->op == &mx_op_rmsnorm || call->op == &mx_op_layernorm)
        return (double)mx_bytes(call->in[0]);
    if (call->op == &mx_op_rmsnorm_grad || call->op == &mx_op_layernorm_grad)
        return 4 * (double)mx_bytes(call->in[0]);
    return 0;
}

mx_chip_time mx_sim_op_time(const mx_sim_chip *chip, const mx_call *call, const mx_cost *cost, double own, double late)
{
    double rate = mx_sim_memory_rate(chip);
    mx_chip_time t = {.memory_s = own / rate, .unit = cost->work};
    double one_hot = chip->one_hot_embedding ? one_hot_flops(chip, call) : 0;
    masked by_mask = chip->expert_masks ? masked_of(call) : (masked){0};
    if (cost->work == MX_WORK_ATTENTION) {
        t.arithmetic_s = attention_seconds(chip, call);
    } else if (cost->work == MX_WORK_PRODUCT) {
        double grouped = grouped_flops(chip, call, cost), flops = grouped > 0 ? grouped : padded_flops(chip, cost);
        flops += chip->logits_again ? logit_flops(call, cost) : 0;
        t.arithmetic_s = flops / (peak_of(chip, call) * chip->matrix_efficiency);
    } else if (one_hot > 0) {
        t.unit = MX_WORK_PRODUCT;
        t.arithmetic_s = one_hot / (chip->peak_flops[MX_BF16] * chip->matrix_efficiency);
    } else if (by_mask.products > 0) {
        t.unit = MX_WORK_PRODUCT;
        t.arithmetic_s = masked_flops(chip, &by_mask) / (chip->peak_flops[MX_BF16] * chip->matrix_efficiency);
        t.memory_s += mask_bytes(&by_mask) / rate;
    } else if (chip->fuses && unsorted_bytes(call) > 0) {
        t.memory_s += unsorted_bytes(call) / rate;
        t.arithmetic_s = vector_seconds(chip, cost->flops);
    } else {
        t.arithmetic_s = vector_seconds(chip, cost->flops);
    }
    double waiting_s = cost->work == MX_WORK_PRODUCT ? waiting_seconds(chip, cost) : 0;
    double again_bytes = chip->logits_again ? LOGIT_AGAIN_BYTES : 0;
    t.passes_s = chip->logit_bytes > 0 ? (chip->logit_bytes + again_bytes) * logits_of(call, cost) / rate : 0;
    t.passes_s += waiting_s;
    if (chip->library_products)
        t.passes_s += (late + repeated_bytes(call)) / rate;
    else
        t.memory_s += late / rate;
    return t;
}
