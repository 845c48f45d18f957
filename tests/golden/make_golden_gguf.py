"""weights/gemma, gemma2, gemma3 and linear once more, as the files NAME.gguf that llama.cpp's converter makes of them: the
norms of Gemma are stored with the 1 that their models add, and linear RoPE by its factor.

    pip install gguf==0.19.0 safetensors torch
    python3 tests/golden/make_golden_gguf.py
"""

import json
import os

import gguf
from safetensors.torch import load_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights")
GEMMA = gguf.MODEL_ARCH.GEMMA, gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3
ARCHITECTURES = {"gemma": GEMMA[0], "gemma2": GEMMA[1], "gemma3_text": GEMMA[2], "llama": gguf.MODEL_ARCH.LLAMA}


def permute(weight, heads):
    """Rows of a rotated projection in the order that GGUF's llama has: the pairs of RoPE as neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def add_keys(writer, c, arch):
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    rope = c["rope_parameters"]
    rope_local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope_local:
        writer.add_rope_freq_base_swa(rope_local["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if arch in GEMMA[1:]:
        writer.add_sliding_window(c["sliding_window"])
    if c.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])


def make(name):
    with open(os.path.join(HERE, name, "config.json")) as file:
        c = json.load(file)
    arch = ARCHITECTURES[c["model_type"]]
    writer = gguf.GGUFWriter(os.path.join(HERE, name + ".gguf"), gguf.MODEL_ARCH_NAMES[arch])
    add_keys(writer, c, arch)
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    for key, t in sorted(load_file(os.path.join(HERE, name, "model.safetensors")).items()):
        t = t.float()
        if arch in GEMMA and key.endswith("norm.weight"):
            t = t + 1
        if arch not in GEMMA and ("q_proj" in key or "k_proj" in key):
            t = permute(t, c["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
        kind = gguf.GGMLQuantizationType.BF16 if t.dim() == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(t.contiguous().numpy(), kind)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for model in ("gemma", "gemma2", "gemma3", "linear"):
    make(model)
