"""Multi-token prediction: a small DeepSeek-V3 of the transformers library and two modules of its layers, in PyTorch: mtp.h5.

    tokens, targets          (B, S) i32
    params.P, grads.P        of each parameter P, by mxlua's names, and bias.LAYER of each router
    loss, mtp_loss           (1): of the model, and of the modules, before its weight

Each module is as in the report of DeepSeek-V3 and in MaxText's layers/multi_token_prediction.py: the product of the
normed embedding of the k-th token after each and of the normed result of the module before, a layer, a norm, and the head
of the model. The gradients are those of loss + WEIGHT mtp_loss. A model is drawn again until no expert and no group is
chosen by a small margin.
"""

import os

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

import golden
from make_golden_deepseek import MARGIN, MODELS, draw, ours, smallest_margin

HERE = os.path.dirname(os.path.abspath(__file__))
B, S, MODULES, WEIGHT = 2, 20, 2, 0.3


class Module(torch.nn.Module):
    """What a module has: its layer has the number that it has in mxlua."""

    def __init__(self, config, k):
        super().__init__()
        emb = config.hidden_size
        self.embedding_norm, self.hidden_norm, self.final_norm = (DeepseekV3RMSNorm(emb, 1e-6) for _ in range(3))
        self.projection = torch.nn.Linear(2 * emb, emb, bias=False)
        self.layer = DeepseekV3DecoderLayer(config, config.num_hidden_layers + k)


def later(t, k):
    return torch.cat([t[:, k:], torch.zeros_like(t[:, :k])], dim=1)


def losses(model, modules, tokens, targets):
    base, length = model.model, tokens.shape[1]
    mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
    places = torch.arange(length)[None]

    def run(layer, x):
        return layer(x, attention_mask=mask, position_ids=places, position_embeddings=base.rotary_emb(x, places))

    x = base.embed_tokens(tokens)
    for layer in base.layers:
        x = run(layer, x)
    loss = torch.nn.functional.cross_entropy(model.lm_head(base.norm(x)).flatten(0, 1), targets.flatten())
    total, count = 0.0, 0
    for k, module in enumerate(modules, 1):
        e = base.embed_tokens(later(tokens, k))
        x = run(module.layer, module.projection(torch.cat([module.embedding_norm(e), module.hidden_norm(x)], dim=-1)))
        logits = model.lm_head(module.final_norm(x))[:, :length - k]
        total = total + torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, k:].flatten(), reduction="sum")
        count += logits[..., 0].numel()
    return loss, total / count


def named(model, modules):
    """The tensors by mxlua's names: {name: (values, gradient)}."""
    found = {}
    for name, p in model.named_parameters():
        found |= {key: (t, g) for (key, t), g in zip(ours(name, p.data).items(), ours(name, p.grad).values())}
    for k, module in enumerate(modules, 1):
        for name, p in module.named_parameters():
            if name.startswith("layer."):
                name = f"model.layers.{model.config.num_hidden_layers + k - 1}.{name.removeprefix('layer.')}"
                found |= {key: (t, g) for (key, t), g in zip(ours(name, p.data).items(), ours(name, p.grad).values())}
            else:
                found[f"mtp{k:03d}.{name}"] = tuple(t.T if t.dim() > 1 else t for t in (p.data, p.grad))
    return found


if __name__ == "__main__":
    settings, words = MODELS["v3"]
    config = DeepseekV3Config(**{**settings.to_dict(), "num_hidden_layers": 2})
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    generator = torch.Generator().manual_seed(70)
    torch.manual_seed(0)
    gpt = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    heads = torch.nn.ModuleList(Module(config, k) for k in range(MODULES)).double().eval()
    while True:
        draw(gpt, generator)
        draw(heads, generator)
        batch = torch.randint(config.vocab_size, (B, S + 1), generator=generator)
        inputs, outputs = batch[:, :-1], batch[:, 1:]
        everything = torch.nn.ModuleList([gpt, heads])
        if smallest_margin(everything, lambda: losses(gpt, heads, inputs, outputs)) > MARGIN:
            break
    main_loss, mtp_loss = losses(gpt, heads, inputs, outputs)
    (main_loss + WEIGHT * mtp_loss).backward()
    data = {"tokens": inputs, "targets": outputs, "loss": main_loss.reshape(1), "mtp_loss": mtp_loss.reshape(1)}
    for key, (values, gradient) in named(gpt, heads).items():
        data |= {"params." + key: values, "grads." + key: gradient}
    for i, layer in enumerate([*gpt.model.layers, *(m.layer for m in heads)], 1):
        if hasattr(layer.mlp, "gate"):
            data[f"bias.{i:03d}"] = layer.mlp.gate.e_score_correction_bias
    words = dict(words, base_num_decoder_layers=2, mtp_num_layers=MODULES, mtp_loss_scaling_factor=WEIGHT)
    golden.write_named(os.path.join(HERE, "mtp.h5"), data, {"words": [f"{k}={v}" for k, v in words.items()]})
