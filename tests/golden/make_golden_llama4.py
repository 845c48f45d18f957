"""Small Llama 4 models as the transformers library saves them, with logits, loss and all gradients.

    weights/llama4/          config.json and model.safetensors (bf16) of a text model, and in expected.safetensors tokens
                             (2, 20) i32, logits (2, 20, V), loss (1), grad.PARAMETER of each parameter, and
                             logits_floor_4, the logits with a floor_scale of 4
    weights/llama4_images/   a model with a part for images (bf16), and only tokens and logits

Sequences have four chunks and layers of every kind: in the text model the fourth has no RoPE, and the second and fourth
have experts; the other has experts in all layers, no norms of queries and keys, and RoPE scaled as in Llama 3.1. Weights
are drawn, not trained; everything is computed in float32. A model is drawn again until no expert is chosen by a small
margin.
"""

import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Llama4Config, Llama4ForConditionalGeneration, Llama4TextConfig

from make_golden_weights import HERE, draw, logits_of

COMMON = dict(vocab_size=96, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
              intermediate_size=12, intermediate_size_mlp=20, num_experts_per_tok=1, attention_chunk_size=6,
              max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
LLAMA31 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
              patch_size=14, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16,
              pixel_shuffle_ratio=0.5)
MARGIN = 1e-3


def smallest_margin(model, tokens):
    margins = []

    def look(router, inputs, result):
        ordered = result[1].sort(dim=1, descending=True).values
        margins.append((ordered[:, 0] - ordered[:, 1]).min().item())

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("feed_forward.router")]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return min(margins)


def drawn(new_model, seed):
    model = new_model().float().eval()
    while True:
        draw(model, torch.bfloat16, seed)
        text = getattr(model, "language_model", model)
        expected = logits_of(text, seed + 1)
        if smallest_margin(text, expected["tokens"].long()) > MARGIN:
            return model, expected
        seed += 2


def save(name, model, expected):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


def make_text():
    config = Llama4TextConfig(**COMMON, num_hidden_layers=4, num_local_experts=4, interleave_moe_layer_step=2,
                              rope_parameters=PLAIN)
    config._attn_implementation = "eager"
    model, expected = drawn(lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32), 3000)
    tokens = expected["tokens"].long()
    loss = model(tokens, labels=tokens).loss  # of each token but the first by those before it
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    expected |= {"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()}
    for layer in model.model.layers:
        layer.self_attn.floor_scale = 4
    with torch.no_grad():
        expected["logits_floor_4"] = model(tokens).logits.contiguous()
    save("llama4", model, expected)


def make_images():
    text = dict(COMMON, num_hidden_layers=2, num_local_experts=3, interleave_moe_layer_step=1, use_qk_norm=False,
                rope_parameters=LLAMA31)
    config = Llama4Config(text_config=text, vision_config=VISION)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    save("llama4_images", *drawn(lambda: Llama4ForConditionalGeneration(config), 4000))


if __name__ == "__main__":
    make_text()
    make_images()
