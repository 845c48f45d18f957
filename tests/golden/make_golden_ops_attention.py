#!/usr/bin/env python3
"""Expected values and gradients of attention whose values have another width than its queries and keys, by PyTorch's
scaled_dot_product_attention on the CPU in float64: writes ops_attention.h5 beside this file.

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

write("ops_attention.h5")
