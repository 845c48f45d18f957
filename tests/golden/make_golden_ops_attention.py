#!/usr/bin/env python3
"""Expected values and gradients of attention whose values have another width than its queries and keys, by PyTorch's
scaled_dot_product_attention on the CPU in float64, and with dropout, by PyTorch's softmax and the mask that
engine/kernels/attention.h defines: writes ops_attention.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import numpy as np
import torch
from torch.nn import functional as F

from cases import case, normal, write


def one(name, width, value_width, b=2, s=7, t=7, h=4, k=2, bias=False, intervals=None, scale=None, causal=False,
        window=0):
    """q (b, s, h, width), k (b, t, k, width), v (b, t, k, value_width)."""
    name = "attention." + name
    i, j = torch.arange(s)[:, None], torch.arange(t)[None]
    seen = torch.ones(s, t, dtype=torch.bool)
    if causal:
        seen = seen & (j <= i)
    if window:
        seen = seen & ((i - j).abs() < window)

    def f(q, k, v, intervals=None, bias=None):
        mask = seen[None, None]
        if intervals is not None:
            mask = mask & (intervals[:, None, :, :1] <= j) & (j < intervals[:, None, :, 1:])
        if bias is not None:
            mask = bias.masked_fill(~mask, -torch.inf)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)

    inputs = [1.5 * normal(name + "q", b, s, h, width), normal(name + "k", b, t, k, width),
              normal(name + "v", b, t, k, value_width)]
    grads = [1, 2, 3]
    if intervals is not None or bias:
        inputs.append(None if intervals is None else np.array(intervals, np.int32))
    if bias:
        inputs.append(normal(name + "bias", b, h, s, t))
        grads.append(5)
    attrs = {key: x for key, x in (("causal", causal), ("window", window), ("scale", scale)) if x}
    case(name, inputs, f, attrs, grads=grads)


one("narrow_values", 6, 4)
one("wide_values", 4, 6)
one("odd_widths", 7, 3, causal=True)
one("odd_wide_values", 5, 19, causal=True)
one("narrow_one_feature", 9, 1, causal=True, h=2, k=2)
one("wide_one_feature", 1, 9, h=3, k=1)
one("narrow_window", 24, 16, causal=True, window=3)
one("wide_more_keys", 3, 11, t=13)
one("wide_bias", 5, 8, causal=True, bias=True)
one("narrow_intervals", 6, 5, intervals=[[[0, 3]] * 3 + [[3, 7]] * 4, [[0, 7]] * 6 + [[2, 4]]])
one("narrow_scale", 12, 8, causal=True, scale=0.7, h=6, k=2)
one("latent", 24, 16, b=1, s=19, t=19, h=2, k=2, causal=True)



# ---- dropout ----


def philox(key, counter):
    """Philox4x32-10 of arrays of four 32-bit counters, in the last dimension."""
    c = [counter[..., w].astype(np.uint64) for w in range(4)]
    low, high, mask, half = key & 0xFFFFFFFF, key >> 32, np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> half) ^ c[1] ^ np.uint64(low), b & mask, (a >> half) ^ c[3] ^ np.uint64(high), a & mask]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, -1)


def dropout_mask(seed, rate, b, h, s, t, first_sequence=0, first_head=0, offset=0):
    """(b, h, s, t): a block of the generator has eight numbers of 16 bits, for eight keys of one query."""
    i, j, k, g = np.meshgrid(np.arange(b), np.arange(h), np.arange(s), np.arange(-(-t // 8)), indexing="ij")
    counter = np.stack([k + offset, g + (1 << 29), 0 * i, (i + first_sequence) * 4096 + j + first_head], -1)
    words = philox(seed, counter)
    numbers = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], -1).reshape(b, h, s, -1)[..., :t]
    threshold = int(rate * 65536 + 0.5)
    return (numbers >= threshold) / (1 - threshold / 65536)


def dropped(name, rate, width=6, value_width=6, b=2, s=7, t=7, h=4, k=2, causal=False, bias=False, **counts):
    name = "attention.dropout_" + name
    seed = 1234567 + len(name)
    mask = torch.from_numpy(dropout_mask(seed, rate, b, h, s, t, **counts))
    i, j = torch.arange(s)[:, None] + counts.get("offset", 0), torch.arange(t)[None]

    def f(q, k, v, intervals=None, bias=None):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) / width**0.5
        scores = scores if bias is None else scores + bias
        scores = scores.masked_fill(j > i, -torch.inf) if causal else scores
        return (scores.softmax(-1) * mask @ v).transpose(1, 2)

    inputs = [1.5 * normal(name + "q", b, s, h, width), normal(name + "k", b, t, k, width),
              normal(name + "v", b, t, k, value_width)]
    if bias:
        inputs += [None, normal(name + "bias", b, h, s, t)]
    case(name, inputs, f, {"dropout": rate, "seed": seed, "causal": causal, **counts})


dropped("plain", 0.5)
dropped("causal", 0.1, s=19, t=19, causal=True)
dropped("odd", 0.3, width=7, value_width=3, s=5, t=21, h=3, k=1)
dropped("part", 0.25, b=1, h=2, k=2, first_sequence=3, first_head=5, offset=4, t=11, causal=True)
dropped("bias", 0.4, bias=True)
dropped("long", 0.2, b=1, s=70, t=130, h=2, k=1)
dropped("one_query", 0.3, s=1, t=37)
for name, size, counts in (("plain", (2, 3, 5, 19), {}), ("part", (1, 2, 3, 8), {"first_sequence": 7, "first_head": 2,
                                                                                 "offset": 9})):
    case(f"attention_dropout.{name}", [], lambda size=size, counts=counts: torch.from_numpy(
        dropout_mask(42, 0.3, *size, **counts)), {"shape": list(size), "dropout": 0.3, "seed": 42, **counts})

write("ops_attention.h5")
