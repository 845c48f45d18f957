"""Small models of every family that mx.weights knows, as the transformers library saves them, with the logits that it
computes from them; the same as GGUF files; and one tensor of every GGUF type.

    weights/NAME/            config.json and model.safetensors [or shards with an index], and in expected.safetensors
                             tokens (2, 20) i32, logits (2, 20, V), loss (1) and grad.NAME of some parameters
    weights/NAME.gguf        with expected logits in weights/NAME.gguf.expected.safetensors
    weights/types.gguf       a tensor NAME of each type NAME, with its values in weights/types.expected.safetensors

Weights are drawn, not trained; everything is computed in float32.
"""

import os
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, LlamaConfig, MinistralConfig, MistralConfig, Olmo2Config, Qwen2Config,
                          Qwen3Config)
from transformers import AutoModelForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights")
VOCAB, EMB, MLP, HEADS = 96, 32, 64, 4

COMMON = dict(vocab_size=VOCAB, hidden_size=EMB, intermediate_size=MLP, num_hidden_layers=2, num_attention_heads=HEADS,
              num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
LLAMA31 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}

LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
MIXED = {**COMMON, "num_hidden_layers": 3, "sliding_window": 5}

FAMILIES = {
    # name: config, dtype of the file, bytes of a shard
    "llama2": (LlamaConfig(**{**COMMON, "num_key_value_heads": HEADS}), torch.float32, None),
    "llama31": (LlamaConfig(**COMMON, head_dim=16, rms_norm_eps=1e-5, rope_parameters=LLAMA31), torch.bfloat16, None),
    "mistral": (MistralConfig(**COMMON, sliding_window=5), torch.float16, None),
    "qwen2": (Qwen2Config(**COMMON, tie_word_embeddings=True), torch.bfloat16, 20000),
    "qwen3": (Qwen3Config(**COMMON, head_dim=16), torch.bfloat16, None),
    "gpt2": (GPT2Config(vocab_size=VOCAB, n_embd=EMB, n_layer=2, n_head=HEADS, n_positions=32), torch.bfloat16, None),
    "linear": (LlamaConfig(**COMMON, rope_parameters=LINEAR), torch.bfloat16, None),
    "ministral": (MinistralConfig(**MIXED, head_dim=8, layer_types=["sliding_attention"] + 2 * ["full_attention"]),
                  torch.bfloat16, None),
    "qwen3_yarn": (Qwen3Config(**MIXED, head_dim=16, use_sliding_window=True, max_window_layers=1, rope_parameters=YARN),
                   torch.bfloat16, None),
    "olmo2": (Olmo2Config(**COMMON), torch.bfloat16, None),
}


def draw(model, dtype, seed, norm=1.0, table=1.0):
    """Values that matter everywhere: weights of norms near `norm`, tables of deviation `table`, biases that are not 0,
    and all of them exact in the file's dtype."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1:
            value = norm + 0.2 * noise if name.endswith("weight") else 0.3 * noise
        else:
            value = noise * (table if "emb" in name or "wte" in name else 0.25)
        with torch.no_grad():
            p.copy_(value.to(dtype).float())


def logits_of(model, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (2, 20), generator=generator)
    with torch.no_grad():
        return {"tokens": tokens.int(), "logits": model(tokens).logits.float().contiguous()}


def gradients_of(model, tokens):
    """The loss of each token but the first by those before it, and its gradients: of vectors, and of a matrix of each
    layer."""
    loss = model(tokens.long(), labels=tokens.long()).loss
    loss.backward()
    wanted = {n: p for n, p in model.named_parameters() if p.dim() == 1 or "q_proj" in n or "c_attn" in n}
    return {"loss": loss.detach().reshape(1)} | {"grad." + n: p.grad.clone().contiguous() for n, p in wanted.items()}


def make_folder(name, config, dtype, shard, seed):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw(model, dtype, seed)
    expected = logits_of(model, seed + 1)
    expected |= gradients_of(model, expected["tokens"])
    sizes = {"max_shard_size": shard} if shard else {}
    saved = model.to(dtype)
    saved.save_pretrained(folder, **sizes)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


# ---- GGUF ----

Q = gguf.GGMLQuantizationType


def permute(weight, heads):
    """Rows of a rotated projection in the order that GGUF's llama has: the pairs of RoPE as neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight, heads):
    return weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


NAMES = [
    ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"),
    ("transformer.wte", "token_embd"), ("transformer.wpe", "position_embd"), ("transformer.ln_f", "output_norm"),
    ("model.layers.", "blk."), ("transformer.h.", "blk."),
    ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
    ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"), ("ln_1", "attn_norm"), ("ln_2", "ffn_norm"), ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
]


def gguf_name(name):
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    return name


def add_keys(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(EMB)
    writer.add_block_count(2)
    writer.add_feed_forward_length(MLP if config.model_type != "gpt2" else 4 * EMB)
    writer.add_head_count(HEADS)
    if config.model_type == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


TOKENS = ["<s>", "</s>", "<unk>"] + [chr(c) for c in range(33, 124)] + ["th", "the"]  # 96


def add_tokenizer(writer):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def rope_factors(parameters, head_dim):
    """What each wavelength is multiplied by in Llama 3.1, as GGUF stores it."""
    frequencies = parameters["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high, factor = (parameters[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def make_gguf(name, config, types, seed):
    """types: GGUF types that the matrices take in turn."""
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw(model, torch.float32, seed)
    path = os.path.join(HERE, name + ".gguf")
    writer = gguf.GGUFWriter(path, config.model_type)
    add_keys(writer, config)
    add_tokenizer(writer)
    state, i = dict(model.state_dict()), 0
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    if config.model_type == "llama" and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config.rope_parameters, config.head_dim))
    for key, t in state.items():
        values, heads = t.numpy(), None
        if config.model_type == "gpt2" and values.ndim == 2 and ("c_" in key):
            values = values.T
        if config.model_type == "llama" and ("q_proj" in key or "k_proj" in key):
            heads = HEADS if "q_proj" in key else config.num_key_value_heads
            values = permute(values, heads)
        kind = types[i % len(types)] if values.ndim == 2 else Q.F32
        i += values.ndim == 2
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(gguf_name(key), data, raw_dtype=kind)
        rounded = gguf.quants.dequantize(data, kind).reshape(values.shape)
        rounded = unpermute(rounded, heads) if heads else rounded
        rounded = rounded.T if config.model_type == "gpt2" and values.ndim == 2 and ("c_" in key) else rounded
        with torch.no_grad():
            t.copy_(torch.from_numpy(np.ascontiguousarray(rounded)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(logits_of(model, seed + 1), path + ".expected.safetensors")


def random_blocks(kind, rows, rng):
    """Blocks of any bits, but with scales (half or float, at these places) that are ordinary numbers."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * 256 // values, size), dtype=np.uint8)
    halves = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2],
              Q.Q6_K: [208]}.get(kind, [])
    for at in halves:
        scale = rng.normal(0, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = scale[:, None].view(np.uint8).reshape(-1, 2)
    if kind == Q.Q8_K:
        scale = rng.normal(0, 0.1, len(blocks)).astype(np.float32)
        blocks[:, 0:4] = scale[:, None].view(np.uint8).reshape(-1, 4)
    return blocks.reshape(rows, -1)


def values_of(blocks, kind):
    if kind == Q.Q8_K:  # the package does not read it
        parts = blocks.reshape(-1, 292)
        scale = parts[:, 0:4].copy().view(np.float32)
        return (scale * parts[:, 4:260].view(np.int8)).reshape(len(blocks), -1)
    return gguf.quants.dequantize(blocks, kind)


def make_types():
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(os.path.join(HERE, "types.gguf"), "llama")
    writer.add_uint64("test.u64", 2 ** 40)
    writer.add_int8("test.i8", -3)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_array("test.array", [1, 2, 3])
    expected, rows = {}, 2
    for kind in (Q.F32, Q.F16, Q.BF16):
        data = gguf.quants.quantize(rng.normal(0, 1, (rows, 256)).astype(np.float32), kind)
        if kind == Q.F16:  # subnormals, the largest, infinities
            data[0, :6] = np.array([6e-8, -5e-5, 65504, np.inf, -np.inf, -0.0], dtype=np.float16)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        expected[kind.name] = gguf.quants.dequantize(data, kind)
    for kind in (Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.Q8_K):
        blocks = random_blocks(kind, rows, rng)
        writer.add_tensor(kind.name, blocks, raw_dtype=kind)
        expected[kind.name] = values_of(blocks, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32)) for k, v in expected.items()},
              os.path.join(HERE, "types.expected.safetensors"))


def main(names):
    """With names: only these folders."""
    os.makedirs(HERE, exist_ok=True)
    for seed, (name, (config, dtype, shard)) in enumerate(FAMILIES.items()):
        if not names or name in names:
            make_folder(name, config, dtype, shard, 10 * seed)
    if names:
        return
    make_gguf("llama31", FAMILIES["llama31"][0], [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.F16], 100)
    make_gguf("qwen3", FAMILIES["qwen3"][0], [Q.BF16], 110)
    make_gguf("gpt2", FAMILIES["gpt2"][0], [Q.Q8_0], 120)
    make_gguf("llama2", FAMILIES["llama2"][0], [Q.Q8_0], 130)
    make_types()


if __name__ == "__main__":
    main(sys.argv[1:])
