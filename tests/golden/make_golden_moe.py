"""Small Mixtral and Qwen3-MoE models as the transformers library saves them, with logits, loss and all gradients.

    weights/NAME/            config.json and model.safetensors (bf16), and in expected.safetensors tokens (2, 20) i32,
                             logits (2, 20, V), loss (1), and grad.PARAMETER of each parameter of the library, where the
                             experts of a layer are mlp.experts.gate_up_proj (n, 2 M, E) and mlp.experts.down_proj
                             (n, E, M)
    weights/NAME.gguf        with expected logits in weights/NAME.gguf.expected.safetensors

The library stores experts in two ways: one tensor for each matrix of each expert, as in the published files (mixtral,
qwen3_moe), or the two tensors above (*_fused). Layers without experts come first in qwen3_moe, and alternate with
others in qwen3_moe_fused, whose weights of a token's experts do not sum to 1. Weights are drawn, not trained;
everything is computed in float32. A model is drawn again until no expert is chosen by a small margin, which another
order of sums could turn around.
"""

import os
import shutil

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from make_golden_weights import HERE, TOKENS, add_tokenizer, draw, gguf_name, logits_of, permute

COMMON = dict(vocab_size=96, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, pad_token_id=None)
MIXTRAL = dict(COMMON, intermediate_size=20, num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=2)
QWEN = dict(COMMON, head_dim=8, intermediate_size=32, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=3,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0})

FAMILIES = {
    "mixtral": MixtralConfig(**MIXTRAL),
    "mixtral_fused": MixtralConfig(**{**MIXTRAL, "num_experts_per_tok": 3}),
    "qwen3_moe": Qwen3MoeConfig(**QWEN, num_hidden_layers=3, norm_topk_prob=True, mlp_only_layers=[0]),
    "qwen3_moe_fused": Qwen3MoeConfig(**QWEN, num_hidden_layers=4, norm_topk_prob=False, decoder_sparse_step=2),
}
MARGIN = 1e-3  # of logits of the router


def smallest_margin(model, tokens, top):
    """The smallest difference between the last chosen expert's logit and the next one's."""
    logits = model(tokens, output_router_logits=True).router_logits
    ordered = torch.cat([t.reshape(-1, t.shape[-1]) for t in logits]).sort(dim=1, descending=True).values
    return (ordered[:, top - 1] - ordered[:, top]).min().item()


def round_matrices(model, kind):
    """Matrices become what blocks of a type of GGUF hold: 32 neighbours of the inner dimension."""
    for t in model.state_dict().values():
        if t.dim() > 1:
            blocks = gguf.quants.quantize(t.numpy(), kind)
            t.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, kind).reshape(t.shape)))


def drawn(config, dtype, seed, kind=None):
    """A model whose choices are clear, and its results."""
    config._attn_implementation = "eager"
    while True:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        draw(model, dtype, seed)
        if kind:
            round_matrices(model, kind)
        expected = logits_of(model, seed + 1)
        with torch.no_grad():
            margin = smallest_margin(model, expected["tokens"].long(), config.num_experts_per_tok)
        if margin > MARGIN:
            return model, expected
        seed += 2


def make_folder(name, config, seed):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model, expected = drawn(config, torch.bfloat16, seed)
    tokens = expected["tokens"].long()
    loss = model(tokens, labels=tokens).loss  # of each token but the first by those before it
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    expected |= {"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()}
    model.to(torch.bfloat16).save_pretrained(folder, save_original_format=not name.endswith("_fused"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


def add_keys(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "mixtral":
        return
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def stored(name, values, config):
    """A tensor of the library as {name: values} of GGUF."""
    name = gguf_name(name).replace("mlp.gate.", "ffn_gate_inp.")
    if name.endswith("mlp.experts.gate_up_proj"):
        gate, up = np.split(values, 2, axis=1)
        base = name.replace("mlp.experts.gate_up_proj", "")
        return {base + "ffn_gate_exps.weight": gate, base + "ffn_up_exps.weight": up}
    heads = config.num_attention_heads if "attn_q.w" in name else config.num_key_value_heads
    rotated = config.model_type == "mixtral" and ("attn_q.w" in name or "attn_k.w" in name)
    return {name.replace("mlp.experts.down_proj", "ffn_down_exps.weight"): permute(values, heads) if rotated else values}


def make_gguf(name, config, architecture, seed, matrices=gguf.GGMLQuantizationType.BF16):
    """matrices: their type in the file."""
    model, expected = drawn(config, torch.bfloat16, seed, matrices)
    path = os.path.join(HERE, name + ".gguf")
    writer = gguf.GGUFWriter(path, architecture)
    add_keys(writer, config)
    add_tokenizer(writer)
    for key, t in model.state_dict().items():
        for theirs, values in stored(key, t.numpy(), config).items():
            kind = matrices if values.ndim > 1 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(theirs, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, path + ".expected.safetensors")


if __name__ == "__main__":
    assert len(TOKENS) == COMMON["vocab_size"]
    for i, (family, family_config) in enumerate(FAMILIES.items()):
        make_folder(family, family_config, 400 + 100 * i)
    make_gguf("mixtral", MixtralConfig(**MIXTRAL), "llama", 800)
    q8 = Qwen3MoeConfig(**{**QWEN, "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 3,
                           "num_experts_per_tok": 2}, num_hidden_layers=1, norm_topk_prob=True)
    make_gguf("qwen3_moe_q8", q8, "qwen3moe", 1000, gguf.GGMLQuantizationType.Q8_0)
    make_gguf("qwen3_moe", Qwen3MoeConfig(**QWEN, num_hidden_layers=2, norm_topk_prob=True), "qwen3moe", 900)
