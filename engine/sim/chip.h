/* How long an operation takes on a simulated chip: pure functions of its cost, the rates of the chip and the settings
 * of its kernels.
 *
 * A matrix product takes the larger of two times: its FLOPs, padded to the tiles of the matrix unit, at the rate of the
 * unit; and its bytes at the memory's rate. A GPU has several multiprocessors, each of which computes a tile of the
 * result at a time. The last wave of tiles takes as long as the others even if it has fewer tiles than there are
 * multiprocessors. Products with fewer tiles than that are split along their depth. A product in blocks of
 * `product_block` reads its first blocks before it can compute, and writes its last block afterwards. Other operations
 * take the larger of the time of their bytes and that of their arithmetic on the vector unit.
 *
 * The loss writes and reads all logits; it may compute them a second time. An embedding may be a product of one-hot
 * vectors and the table.
 *
 * Experts with a capacity may get their tokens, and give their results, by products with masks (`expert_masks`): a mask
 * has an element for each token of a sequence and each slot of the experts, in bf16.
 *
 * A grouped product computes a tile of rows once for each group that has rows in it. The sum of a token's rows reads
 * them in the order of the tokens, in which another pass has written them.
 *
 * Attention is computed in blocks of queries by keys. A block that a mask rules out is skipped; any other is computed
 * whole, and has an overhead beside its arithmetic. Documents of packed sequences are a mask, too. A kernel that does
 * not skip by it compares numbers of documents for every score. head_dim is padded to the matrix unit. The softmax of
 * the scores runs on the vector unit beside the products. Without a kernel for attention (`scores_in_memory`), the
 * compiler writes all scores to memory and reads them several times. */
#ifndef MX_SIM_CHIP_H
#define MX_SIM_CHIP_H

#include "ops/op.h"
#include "transport/exchange.h"

/* Queries and keys of a block of an attention kernel. */
typedef struct mx_blocks {
    int64_t q, kv;
} mx_blocks;

typedef struct mx_attention_kernel {
    bool scores_in_memory; /* there is no kernel: scores are f32 in memory, and masks skip nothing */
    bool fused_backward;   /* one kernel computes all gradients. If not, a second one, for q, computes scores again */
    int64_t document;      /* tokens of each document of packed sequences; 0: sequences are not packed */
    bool skips_documents;  /* blocks whose queries and keys are of different documents are left out, too */
    bool fixed_maximum;    /* a given number is subtracted from scores, so that no maximum is needed */
    mx_blocks forward, dkv, dq;
} mx_attention_kernel;

typedef struct mx_sim_chip {
    double peak_flops[MX_DTYPES]; /* of matrix products, by the dtype of their operands; e5m2 counts as e4m3, and
                                     e5m2fnuz as e4m3fnuz. 0: that of f32; of codes, that of bf16 */
    double f4_flops;              /* of those of NVFP4; 0: that of bf16 */
    double vector_flops;          /* operations per second of the vector unit; 0: never a limit */
    int tile;                     /* rows and columns of the matrix unit; 1: no padding */
    int multiprocessors;          /* that share the tiles of a product; 0: one unit computes it as a whole */
    int product_tile[2];          /* sides of the part of a result that a multiprocessor computes at a time */
    int product_block;            /* sides of the blocks of a product in on-chip memory; 0: all traffic overlaps */
    double product_s;             /* overhead of each product */
    double memory_bytes, memory_Bps;
    double host_Bps; /* bandwidth to the host's memory, one way */
    double launch_s; /* overhead of each operation */
    bool fuses;
    bool library_products; /* products are calls of a library: nothing is fused into them, nor reductions into others */
    bool offloads[MX_EXCHANGE_KINDS];                                  /* separate cores run these collectives */
    double matrix_efficiency, attention_efficiency, memory_efficiency; /* share of each peak that is reached */
    double collective_share; /* of the units for arithmetic that a collective in the slice takes while it lasts */
    double attention_step_s; /* overhead of each block of an attention kernel */
    double logit_bytes;      /* memory traffic of the loss for each logit, beside that of its products */
    bool logits_again;       /* backward computes the logits again */
    bool one_hot_embedding;  /* embeddings are products with one-hot vectors */
    int group_tile;          /* rows of a tile of a grouped product; 0: each group is a product of its own */
    bool expert_masks;       /* tokens move to experts and back by products with masks, a sequence at a time */
    mx_attention_kernel attention;
} mx_sim_chip;

static inline double mx_sim_memory_rate(const mx_sim_chip *chip) { return chip->memory_Bps * chip->memory_efficiency; }

/* Seconds of an operation: the larger of those on the matrix or the vector unit and of its memory traffic; and those of
 * memory traffic that overlaps with no arithmetic. `own`: bytes that the operation moves while it computes; `late`:
 * bytes of results of earlier operations, which are written for this one. */
typedef struct mx_chip_time {
    double arithmetic_s, memory_s;
    double passes_s;
    mx_work unit; /* MX_WORK_BYTES: the vector unit */
} mx_chip_time;
mx_chip_time mx_sim_op_time(const mx_sim_chip *chip, const mx_call *call, const mx_cost *cost, double own, double late);

#endif
