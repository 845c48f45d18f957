"""Small models of Gemma 1, 2, 3 and OLMo 3 as the transformers library saves them, with logits, loss and all gradients.

    weights/NAME/            config.json and model.safetensors (bf16), and in expected.safetensors tokens (2, 20) i32,
                             logits (2, 20, V), loss (1) and grad.PARAMETER of each parameter

Windows are shorter than the sequences, soft caps and query scalars matter, and every kind of layer occurs. Weights are
drawn, not trained; everything is computed in float32. There is no padding token, whose row would get no gradient.
"""

import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GemmaConfig, Olmo3Config

from make_golden_weights import HERE, draw, logits_of

COMMON = dict(vocab_size=96, hidden_size=24, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
PLAIN = {"rope_type": "default", "rope_theta": 50.0}
GEMMA = dict(COMMON, head_dim=8, rms_norm_eps=1e-5)
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 8.0, "beta_slow": 1.0, "attention_factor": 1.1386294361119891}

FAMILIES = {
    "gemma": GemmaConfig(**{**GEMMA, "num_key_value_heads": 1}, num_hidden_layers=2),
    "gemma2": Gemma2Config(**GEMMA, num_hidden_layers=4, query_pre_attn_scalar=12, sliding_window=5,
                           attn_logit_softcapping=2.0, final_logit_softcapping=4.0),
    "gemma3": Gemma3TextConfig(**GEMMA, num_hidden_layers=7, query_pre_attn_scalar=12, sliding_window=5,
                               rope_parameters={"full_attention": LINEAR, "sliding_attention": PLAIN}),
    "olmo3": Olmo3Config(**COMMON, num_hidden_layers=4, rms_norm_eps=1e-5, sliding_window=5,
                         rope_parameters={"full_attention": YARN, "sliding_attention": PLAIN}),
}


def make_family(name, config, seed):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    gemma = name.startswith("gemma")  # its norms scale by 1 + their weights, and its table by sqrt(hidden_size)
    draw(model, torch.bfloat16, seed, norm=0.0 if gemma else 1.0, table=0.2 if gemma else 1.0)
    expected = logits_of(model, seed + 1)
    tokens = expected["tokens"].long()
    loss = model(tokens, labels=tokens).loss  # of each token but the first by those before it
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    expected |= {"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()}
    model.to(torch.bfloat16).save_pretrained(folder)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


if __name__ == "__main__":
    for i, (family, family_config) in enumerate(FAMILIES.items()):
        make_family(family, family_config, 200 + 10 * i)
