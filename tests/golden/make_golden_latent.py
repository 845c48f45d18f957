"""Small models of DeepSeek V2 and V3 as the transformers library saves them, with logits, loss and all gradients.

    weights/NAME/            config.json and model.safetensors (bf16), and in expected.safetensors tokens (2, 20) i32,
                             logits (2, 20, V), loss (1) and grad.PARAMETER of each parameter of the library, where the
                             experts of a layer are two tensors, as in make_golden_moe.py

deepseek_v2 has groups scored by their best expert, YaRN and a tensor for each matrix of each expert; its RoPE rotates
neighbours. deepseek_v3 has a bias of the experts, plain RoPE of neighbours, and two tensors for the experts of a layer.
kimi_k2 is V3 as Kimi's files have it: matrices in e4m3 with a factor for each block of 16 x 16 values, of which the last
ones are smaller, and a tensor of a further layer for multi-token prediction. Its logits are those of the rounded weights.
Weights are drawn, not trained; everything is computed in float32. A model is drawn again until no expert and no group is
chosen by a small margin, which another order of sums could turn around.
"""

import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config

from make_golden_deepseek import MARGIN, smallest_margin
from make_golden_weights import HERE, draw, logits_of

COMMON = dict(vocab_size=96, hidden_size=24, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=8,
              num_experts_per_tok=3, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=7,
              max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
        "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
V3 = dict(COMMON, q_lora_rank=11, n_shared_experts=1, n_group=4, topk_group=2, num_mtp_layers=0, rope_parameters=PLAIN)
FAMILIES = {
    "deepseek_v2": DeepseekV2Config(**COMMON, q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=16.0, n_group=4,
                                    topk_group=2, topk_method="group_limited_greedy", rope_parameters=YARN),
    "deepseek_v3": DeepseekV3Config(**V3),
    "kimi_k2": DeepseekV3Config(**{**V3, "n_group": 1, "topk_group": 1, "rope_parameters": {**YARN, "mscale": 1.0,
                                                                                         "mscale_all_dim": 1.0}}),
}
BLOCK = 16


def quantised(matrix):
    """A matrix in e4m3, and a factor for each block."""
    rows, columns = (-(-n // BLOCK) for n in matrix.shape)
    scales = torch.zeros(rows, columns, dtype=torch.float32)
    codes = torch.zeros(matrix.shape, dtype=torch.float8_e4m3fn)
    for i in range(rows):
        for j in range(columns):
            at = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = matrix[at].abs().max() / 448
            codes[at] = (matrix[at] / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def widened(codes, scales):
    whole = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return codes.float() * whole[:codes.shape[0], :codes.shape[1]]


def is_quantised(name, t):
    return t.dim() == 2 and "layers" in name and "mlp.gate." not in name


def round_weights(model):
    """Rounds the weights as the file will have them."""
    for name, p in model.named_parameters():
        if "experts.gate_up_proj" in name:  # the two halves are matrices of their own
            for i, both in enumerate(p.data):
                p.data[i] = torch.cat([widened(*quantised(half)) for half in both.chunk(2)])
        elif p.dim() == 3:
            for i, matrix in enumerate(p.data):
                p.data[i] = widened(*quantised(matrix))
        elif is_quantised(name, p):
            p.data = widened(*quantised(p.data))


def quantise_folder(folder):
    path = os.path.join(folder, "model.safetensors")
    tensors = {}
    for name, t in load_file(path).items():
        if is_quantised(name, t):
            tensors[name], tensors[name + "_scale_inv"] = quantised(t)
        else:
            tensors[name] = t if name.endswith("bias") else t.bfloat16()
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(24, 48, dtype=torch.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        values = json.load(f)
    values |= {"model_type": "kimi_k2", "num_nextn_predict_layers": 1,
               "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                       "weight_block_size": [BLOCK, BLOCK]}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(values, f, indent=2)


def drawn(name, config, seed):
    config._attn_implementation = "eager"
    while True:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        draw(model, torch.bfloat16, seed)
        generator = torch.Generator().manual_seed(seed)
        for key, b in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                b.data = (0.1 * torch.randn(b.shape, generator=generator)).float()
        if name == "kimi_k2":
            round_weights(model)
        expected = logits_of(model, seed + 1)
        if smallest_margin(model, expected["tokens"].long()) > MARGIN:
            return model, expected
        seed += 2


def make_folder(name, config, seed):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model, expected = drawn(name, config, seed)
    tokens = expected["tokens"].long()
    loss = model(tokens, labels=tokens).loss  # of each token but the first by those before it
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    expected |= {"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()}
    biases = {key: b.clone() for key, b in model.named_buffers() if key.endswith("bias")}
    if name != "kimi_k2":
        model = model.to(torch.bfloat16)
    for key, b in model.named_buffers():
        b.data = biases.get(key, b.data)
    model.save_pretrained(folder, save_original_format=name != "deepseek_v3")
    if name == "kimi_k2":
        quantise_folder(folder)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


if __name__ == "__main__":
    for i, (family, family_config) in enumerate(FAMILIES.items()):
        make_folder(family, family_config, 400 + 10 * i)
