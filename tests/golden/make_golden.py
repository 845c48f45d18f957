#!/usr/bin/env python3
"""The decoder's three block kinds by PyTorch on the CPU in float64: writes parallel.h5, llama.h5 and gpt2.h5 here.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md for what a file holds. The models are written out in
full, in terms of tensors alone: no nn.Module, no optimizer class, so that nothing is left to a library's defaults.
Weights are stored (in, out): y = x @ w.

    B batch, S sequence, V vocabulary, E embedding, H query heads, K key/value heads, D head_dim, M mlp
"""

import itertools
import math
import os

import numpy as np
import torch
from torch.nn import functional as F

from golden import rng, store, to_torch, write_named

STEPS = 10

# What the three configurations share; keys as in configs/base.yml. Odd sizes on purpose.
SHARED = {
    "vocab_size": 43,
    "base_emb_dim": 20,
    "base_num_query_heads": 4,
    "head_dim": 6,
    "base_mlp_dim": 28,
    "base_num_decoder_layers": 2,
    "max_target_length": 10,
    "per_device_batch_size": 2,
}

KINDS = {
    "parallel": {
        "config": {
            "base_num_kv_heads": 4,
            "mlp_activations": ["relu"],
            "parallel_block": True,
            "normalization_layer_epsilon": 1e-6,
            "use_rope": False,
            "attention_type": "full",
            "fold_attention_scale": True,
            "logits_via_embedding": True,
            "normalize_embedding_logits": True,
        },
        # This threshold lies between the norms of the ten steps: some are clipped and some are not.
        "clip": 1.1,
        "optimizer": {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    },
    "llama": {
        "config": {
            "base_num_kv_heads": 2,
            "mlp_activations": ["silu", "linear"],
            "normalization_layer_epsilon": 1e-5,
            "rope_max_timescale": 10000.0,
        },
        "clip": 1.0,
        "optimizer": {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    },
    "gpt2": {
        "config": {
            "base_num_kv_heads": 4,
            "mlp_activations": ["gelu"],
            "normalization_layer": "layernorm",
            "normalization_layer_epsilon": 1e-5,
            "use_bias": True,
            "use_rope": False,
            "trainable_position_size": 12,
            "logits_via_embedding": True,
        },
        "clip": 1.0,
        # The keys' bias has no effect on a softmax over keys: its gradient is rounding noise, which Adam would blow up
        # to full steps but for a larger eps.
        "optimizer": {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-4, "weight_decay": 0.01},
    },
}


# ---- parameters ----


def shapes(kind, c):
    """Name -> shape of every parameter."""
    e, d, m, v = c["base_emb_dim"], c["head_dim"], c["base_mlp_dim"], c["vocab_size"]
    h, k = c["base_num_query_heads"] * d, c["base_num_kv_heads"] * d
    p = {"embedding.weight": (v, e)}
    if kind == "gpt2":
        p["position.weight"] = (c["trainable_position_size"], e)
    for i in range(c["base_num_decoder_layers"]):
        norms = ("norm",) if kind == "parallel" else ("norm", "mlp_norm")
        weights = {"query": (e, h), "key": (e, k), "value": (e, k), "out": (h, e), "wi": (e, m), "wo": (m, e)}
        if kind == "llama":
            weights["wi_0"] = weights["wi_1"] = weights.pop("wi")
        for name, shape in {**{n: (e,) for n in norms}, **weights}.items():
            p[layer(i) + name + ".weight"] = shape
            if kind == "gpt2":
                p[layer(i) + name + ".bias"] = shape[-1:]
    p["norm.weight"] = (e,)
    if kind == "gpt2":
        p["norm.bias"] = (e,)
    if kind == "llama":
        p["unembedding.weight"] = (e, v)
    return p


def layer(i):
    return f"layer{i + 1:03d}."


def initial(kind, c):
    """Values that leave no part of the model without effect: biases and norm scales are not at 0 and 1."""
    out = {}
    for name, shape in shapes(kind, c).items():
        z = rng(f"{kind}.{name}").standard_normal(shape)
        if name.endswith("bias"):
            a = 0.1 * z
        elif name.endswith("norm.weight"):
            a = 1 + 0.1 * z
        elif name in ("embedding.weight", "position.weight"):
            a = (0.2 if kind == "gpt2" else 0.5) * z
        else:
            a = z / math.sqrt(shape[0])
            if "query" in name and kind == "parallel":
                a = a / math.sqrt(c["head_dim"])  # stands for the scale that the attention of this kind leaves out
        out[name] = to_torch(store(a))
    return out


# ---- the three models: tokens (B, S) -> logits (B, S, V) ----


def rms_norm(x, scale, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * scale


def rope(x, theta):
    """x (B, S, H, D): element i < D/2 turns with element i + D/2 by position * theta^(-2i/D)."""
    s, d = x.shape[1], x.shape[3]
    angle = torch.arange(s).double()[:, None] * theta ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v, causal, scale):
    """q (B, S, H, D); k, v (B, S, K, D); query head h reads key/value head h // (H / K)."""
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bshd,bthd->bhst", q, k) * scale
    if causal:
        s = q.shape[1]
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), -torch.inf)
    return torch.einsum("bhst,bthd->bshd", torch.softmax(scores, -1), v)


def heads(x, c):
    return x.unflatten(-1, (-1, c["head_dim"]))


def parallel(p, tokens, c):
    """One norm feeds attention and MLP, both added to the residual; no positions, no mask, no scale in the attention;
    a tied table with logits / sqrt(E)."""
    eps = c["normalization_layer_epsilon"]
    x = p["embedding.weight"][tokens]
    for i in range(c["base_num_decoder_layers"]):
        w = lambda name, i=i: p[f"{layer(i)}{name}.weight"]
        y = rms_norm(x, w("norm"), eps)
        q, k, v = (heads(y @ w(name), c) for name in ("query", "key", "value"))
        a = attention(q, k, v, causal=False, scale=1.0).flatten(-2) @ w("out")
        x = x + a + torch.relu(y @ w("wi")) @ w("wo")
    x = rms_norm(x, p["norm.weight"], eps)
    return x @ p["embedding.weight"].T / math.sqrt(c["base_emb_dim"])


def llama(p, tokens, c):
    eps, theta = c["normalization_layer_epsilon"], c["rope_max_timescale"]
    x = p["embedding.weight"][tokens]
    for i in range(c["base_num_decoder_layers"]):
        w = lambda name, i=i: p[f"{layer(i)}{name}.weight"]
        y = rms_norm(x, w("norm"), eps)
        q, k, v = (heads(y @ w(name), c) for name in ("query", "key", "value"))
        a = attention(rope(q, theta), rope(k, theta), v, causal=True, scale=c["head_dim"] ** -0.5)
        x = x + a.flatten(-2) @ w("out")
        y = rms_norm(x, w("mlp_norm"), eps)
        x = x + (F.silu(y @ w("wi_0")) * (y @ w("wi_1"))) @ w("wo")
    return rms_norm(x, p["norm.weight"], eps) @ p["unembedding.weight"]


def gpt2(p, tokens, c):
    eps, e = c["normalization_layer_epsilon"], c["base_emb_dim"]
    norm = lambda x, name: F.layer_norm(x, (e,), p[name + ".weight"], p[name + ".bias"], eps)
    x = p["embedding.weight"][tokens] + p["position.weight"][: tokens.shape[1]]
    for i in range(c["base_num_decoder_layers"]):
        dense = lambda x, name, i=i: x @ p[f"{layer(i)}{name}.weight"] + p[f"{layer(i)}{name}.bias"]
        y = norm(x, layer(i) + "norm")
        q, k, v = (heads(dense(y, name), c) for name in ("query", "key", "value"))
        x = x + dense(attention(q, k, v, causal=True, scale=c["head_dim"] ** -0.5).flatten(-2), "out")
        y = norm(x, layer(i) + "mlp_norm")
        x = x + dense(F.gelu(dense(y, "wi"), approximate="tanh"), "wo")
    return norm(x, "norm") @ p["embedding.weight"].T


MODELS = {"parallel": parallel, "llama": llama, "gpt2": gpt2}


# ---- loss, gradients, ten steps of AdamW ----


def loss_of(logits, targets, mask):
    """Mean cross-entropy over the tokens whose mask is 1."""
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    m = mask.flatten().double()
    return (each * m).sum() / m.sum()


def gradients(model, p, batch, c):
    leaves = {name: t.clone().requires_grad_(True) for name, t in p.items()}
    logits = model(leaves, batch[0], c)
    loss = loss_of(logits, *batch[1:])
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return logits.detach(), loss.detach(), dict(zip(leaves, grads))


def adamw_step(p, g, m, v, step, o, threshold):
    """optax.chain(clip_by_global_norm(threshold), adamw(...)) without a decay mask; returns the norm before clipping."""
    norm = torch.sqrt(sum((x * x).sum() for x in g.values()))
    clip = 1.0 if norm < threshold else threshold / norm
    for name in p:
        d = g[name] * clip
        m[name] = o["beta1"] * m[name] + (1 - o["beta1"]) * d
        v[name] = o["beta2"] * v[name] + (1 - o["beta2"]) * d * d
        m_hat, v_hat = m[name] / (1 - o["beta1"] ** step), v[name] / (1 - o["beta2"] ** step)
        p[name] = p[name] - o["lr"] * (m_hat / (torch.sqrt(v_hat) + o["eps"]) + o["weight_decay"] * p[name])
    return norm


def draw(name, c):
    """Tokens, targets and masks of all steps: as arrays to store, and as a batch of tensors for each step."""
    r, size = rng(name), (STEPS, c["per_device_batch_size"], c["max_target_length"])
    tokens, targets = (r.integers(0, c["vocab_size"], size).astype(np.int32) for _ in range(2))
    mask = (r.uniform(size=size) < 0.8).astype(np.uint8)
    batches = [tuple(to_torch(a[i]) for a in (tokens, targets, mask)) for i in range(STEPS)]
    return {"tokens": tokens, "targets": targets, "mask": mask}, batches


def is_well_posed(grads, eps):
    """The first step of Adam goes by g / (|g| + eps): where |g| is no larger than eps or f32's error of it, the answer
    says nothing about the arithmetic. Exact zeros stay zeros."""
    least = min(g[g != 0].abs().min() for g in grads.values())
    return eps > 1e-6 or least > 50 * eps


def make(kind):
    c = dict(SHARED, **KINDS[kind]["config"])
    o = KINDS[kind]["optimizer"]
    p = initial(kind, c)
    d = {"params." + name: t.clone() for name, t in p.items()}
    for attempt in itertools.count():
        arrays, batches = draw(f"{kind}.{attempt}", c)
        logits, loss, grads = gradients(MODELS[kind], p, batches[0], c)
        if is_well_posed(grads, o["eps"]):
            break
    d.update(arrays)
    d.update({"grads." + name: t for name, t in grads.items()})
    d["logits"], d["loss"] = logits, loss

    m, v = ({name: torch.zeros_like(t) for name, t in p.items()} for _ in range(2))
    losses, norms = [], []
    for i in range(STEPS):
        _, loss, grads = gradients(MODELS[kind], p, batches[i], c)
        losses.append(loss)
        norms.append(adamw_step(p, grads, m, v, i + 1, o, KINDS[kind]["clip"]))
    d.update({"final." + name: t for name, t in p.items()})
    d["losses"], d["grad_norms"] = torch.stack(losses), torch.stack(norms)

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), kind + ".h5")
    about = {"kind": kind, "config": c, "optimizer": o, "clip": KINDS[kind]["clip"], "steps": STEPS}
    write_named(path, d, about)
    print(f"{path}: {os.path.getsize(path)} bytes, losses {losses[0]:.4f} ... {losses[-1]:.4f}, grad norms "
          f"{', '.join(f'{x:.3f}' for x in norms)}")


if __name__ == "__main__":
    for one in KINDS:
        make(one)
