"""Two small DeepSeek models of the transformers library: deepseek.h5.

v2 has queries without a latent, softmax scores and no groups; v3 has a latent of queries, sigmoid scores, groups and a
bias of the experts. Both have a first layer without experts, shared experts, values narrower than keys, and YaRN with
mscale. For each NAME of them:

    NAME.tokens, NAME.targets   (B, S) i32
    NAME.params.P, NAME.grads.P of each parameter P, by mxlua's names, and NAME.bias.LAYER of each router with a bias
    NAME.logits, NAME.loss      (B, S, V), (1)

The attribute `about` has the key=value words of each model. Weights are drawn, not trained. A model is drawn again until
no expert and no group is chosen by a small margin, which another order of sums could turn around.
"""

import os

import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config

import golden

HERE = os.path.dirname(os.path.abspath(__file__))
B, S, MARGIN = 2, 20, 1e-3
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 40.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 1.0}
COMMON = dict(vocab_size=96, hidden_size=24, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=8,
              num_experts_per_tok=3, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=7,
              max_position_embeddings=640, rms_norm_eps=1e-6, attn_implementation="eager", experts_implementation="eager")
WORDS = dict(decoder_block="deepseek", vocab_size=96, base_emb_dim=24, base_mlp_dim=40, base_moe_mlp_dim=12,
             base_num_decoder_layers=3, base_num_query_heads=4, base_num_kv_heads=4, first_num_dense_layers=1,
             num_experts=8, num_experts_per_tok=3, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6,
             v_head_dim=7, normalization_layer_epsilon=1e-6, rope_type="yarn", rope_max_timescale=100.0,
             rope_factor=40.0, original_max_position_embeddings=16, beta_fast=4.0, max_position_embeddings=640,
             mlp_activations="[silu, linear]")
MODELS = {
    "v2": (DeepseekV2Config(**COMMON, q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=1.5,
                            rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
           dict(WORDS, q_lora_rank=0, shared_experts=2, routed_score_func="softmax", routed_scaling_factor=1.5,
                mscale=0.707)),
    "v3": (DeepseekV3Config(**COMMON, q_lora_rank=11, n_shared_experts=1, routed_scaling_factor=2.5, n_group=4,
                            topk_group=2, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
           dict(WORDS, q_lora_rank=11, shared_experts=1, routed_score_func="sigmoid", routed_scaling_factor=2.5,
                routed_bias="true", n_routing_groups=4, topk_routing_group=2, mscale=1.0)),
}
SHORT = {
    "input_layernorm": "norm", "post_attention_layernorm": "mlp_norm", "self_attn.q_proj": "query",
    "self_attn.q_a_proj": "query_a", "self_attn.q_a_layernorm": "query_a_norm", "self_attn.q_b_proj": "query_b",
    "self_attn.kv_a_proj_with_mqa": "kv_a", "self_attn.kv_a_layernorm": "kv_a_norm", "self_attn.kv_b_proj": "kv_b",
    "self_attn.o_proj": "out", "mlp.gate_proj": "wi_0", "mlp.up_proj": "wi_1", "mlp.down_proj": "wo",
    "mlp.gate": "router", "mlp.experts.down_proj": "experts.wo", "mlp.shared_experts.gate_proj": "shared.wi_0",
    "mlp.shared_experts.up_proj": "shared.wi_1", "mlp.shared_experts.down_proj": "shared.wo",
}
WHOLE = {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "unembedding"}


def ours(name, value):
    """A tensor of the library by mxlua's names; matrices are transposed, tables of tokens are not."""
    name = name.removesuffix(".weight")
    if name == "model.embed_tokens":
        return {"embedding.weight": value}
    value = value.transpose(-1, -2) if value.dim() > 1 else value
    if name in WHOLE:
        return {WHOLE[name] + ".weight": value}
    _, _, layer, short = name.split(".", 3)
    prefix = f"layer{int(layer) + 1:03d}."
    if short == "mlp.experts.gate_up_proj":
        gate, up = value.chunk(2, dim=-1)
        return {prefix + "experts.wi_0.weight": gate, prefix + "experts.wi_1.weight": up}
    return {prefix + SHORT[short] + ".weight": value}


def draw(model, generator):
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        p.data = (1 + 0.2 * noise if p.dim() == 1 else noise * (1 if "embed" in name else p.shape[-1] ** -0.5)).float(
            ).double()
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = (0.1 * torch.randn(b.shape, generator=generator)).float().double()


def smallest_margin(model, run):
    """The smallest difference between the last chosen score and the next one, of experts and of groups; run: the model's
    tokens, or a function that runs it."""
    margins = []

    def gap(scores, k):
        ordered = scores.sort(dim=-1, descending=True).values
        margins.append((ordered[:, k - 1] - ordered[:, k]).min().item())

    def look(gate, inputs, result):
        v2 = not hasattr(gate, "e_score_correction_bias")
        scores = result[0].softmax(-1) if v2 else result[0].sigmoid() + gate.e_score_correction_bias
        if v2 and gate.topk_method == "greedy":
            return gap(scores, gate.top_k)
        pairs = scores.view(len(scores), gate.num_group, -1)
        groups = pairs.topk(1 if v2 else 2, dim=-1).values.sum(-1)
        if gate.topk_group < gate.num_group:
            gap(groups, gate.topk_group)
        chosen = torch.zeros_like(groups).scatter_(1, groups.topk(gate.topk_group, dim=-1).indices, 1)
        gap(torch.where(chosen[..., None] > 0, pairs, -1.0).flatten(1), gate.top_k)

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.gate")]
    with torch.no_grad():
        run() if callable(run) else model(run)
    for hook in hooks:
        hook.remove()
    return min(margins)


def results(config, generator):
    """The datasets of one model."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    while True:
        draw(model, generator)
        batch = torch.randint(config.vocab_size, (B, S + 1), generator=generator)
        tokens, targets = batch[:, :-1], batch[:, 1:]
        if smallest_margin(model, tokens) > MARGIN:
            break
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    data = {"tokens": tokens, "targets": targets, "logits": logits, "loss": loss.reshape(1)}
    for name, p in model.named_parameters():
        data |= {"params." + key: t for key, t in ours(name, p.data).items()}
        data |= {"grads." + key: t for key, t in ours(name, p.grad).items()}
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            data[f"bias.{int(name.split('.')[2]) + 1:03d}"] = b
    return data


if __name__ == "__main__":
    every, words = {}, {}
    for i, (case, (model_config, keys)) in enumerate(MODELS.items()):
        words[case] = [f"{key}={value}" for key, value in keys.items()]
        found = results(model_config, torch.Generator().manual_seed(40 + i))
        every |= {f"{case}.{key}": value for key, value in found.items()}
    golden.write_named(os.path.join(HERE, "deepseek.h5"), every, {"words": words})
