"""A small GPT-OSS model as the transformers library saves it, with logits, loss and all gradients, and one with experts
in MXFP4.

    weights/gpt_oss/         config.json and model.safetensors (bf16), and in expected.safetensors tokens (2, 20) i32,
                             logits (2, 20, V), loss (1) and grad.PARAMETER of each parameter
    weights/gpt_oss_mxfp4/   the same with one layer, the published spelling of its experts (blocks and scales of every
                             code and of several sizes), and only tokens and logits

The window is shorter than the sequences, sinks are of the size of scores, gates pass the limit, and YaRN is not
truncated. Weights are drawn, not trained; everything is computed in float32. A model is drawn again until no expert is
chosen by a small margin.
"""

import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from make_golden_weights import HERE, logits_of

YARN = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
COMMON = dict(vocab_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts_per_tok=2,
              sliding_window=5, swiglu_limit=1.5, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
              pad_token_id=None, rope_parameters=YARN)
MARGIN = 1e-3


def draw(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("sinks"):
            value = 1.5 * noise
        elif "norm" in name:
            value = 1 + 0.2 * noise
        else:
            value = noise * (0.3 if "bias" in name or p.dim() == 3 else 1.0 if "embed" in name else 0.25)
        p.data = value.to(torch.bfloat16).float()


def smallest_margin(model, tokens):
    margins = []

    def look(router, inputs, _):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), router.weight, router.bias)
        ordered = logits.sort(dim=1, descending=True).values
        margins.append((ordered[:, router.top_k - 1] - ordered[:, router.top_k]).min().item())

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.router")]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return min(margins)


def drawn(config, seed, change=None):
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    while True:
        draw(model, seed)
        if change:
            change(model)
        expected = logits_of(model, seed + 1)
        if smallest_margin(model, expected["tokens"].long()) > MARGIN:
            return model, expected
        seed += 2


def folder_of(name):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def save(model, folder, expected):
    model.to(torch.bfloat16).save_pretrained(folder)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))


def make_plain():
    config = GptOssConfig(**COMMON, hidden_size=24, intermediate_size=12, num_hidden_layers=4, num_local_experts=5)
    model, expected = drawn(config, 1000)
    tokens = expected["tokens"].long()
    loss = model(tokens, labels=tokens).loss  # of each token but the first by those before it
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    expected |= {"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()}
    save(model, folder_of("gpt_oss"), expected)


def make_mxfp4():
    config = GptOssConfig(**COMMON, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_local_experts=3)
    generator, packed = torch.Generator().manual_seed(2000), {}
    for name, outputs, inputs in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
        blocks = torch.randint(0, 256, (3, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 126, (3, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        packed["model.layers.0.mlp.experts." + name] = blocks, scales

    def change(model):
        for name, (blocks, scales) in packed.items():
            values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            model.get_parameter(name).data = values.contiguous()

    model, expected = drawn(config, 2001, change)
    folder = folder_of("gpt_oss_mxfp4")
    save(model, folder, expected)
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name, (blocks, scales) in packed.items():
        del tensors[name]
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        values = json.load(f)
    values["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    with open(path, "w") as f:
        f.write(json.dumps(values, indent=2) + "\n")


if __name__ == "__main__":
    make_plain()
    make_mxfp4()
