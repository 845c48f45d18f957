#!/usr/bin/env python3
"""Ten updates of a matrix and a vector by several optimizers, in float64: writes optimizers.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0. Adafactor is torch.optim.Adafactor. Lion and Muon follow the formulas of
their papers; Muon's factor is that of torch.optim.Muon for weights stored as (inputs, outputs). muon_optax was compared with
optax.contrib.muon (optax 0.2.8, float64, eps = 0): equal to the f32 that the file holds.
"""

import os

import numpy as np
import torch

from golden import rng, store, write_named

STEPS = 10
SHAPES = {"matrix": (6, 4), "wide": (3, 8), "vector": (5,)}


def lion(p, grads, lr, wd, b1=0.9, b2=0.99):
    m = np.zeros_like(p)
    for g in grads:
        p = p * (1 - lr * wd) - lr * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return p


def orthogonal(x, eps=1e-7):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / max(np.linalg.norm(x), eps)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


def muon(p, grads, lr, wd, momentum=0.95, nesterov=True, bias_correction=False):
    buf = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        buf = momentum * buf + (1 - momentum) * g
        u = momentum * buf + (1 - momentum) * g if nesterov else buf
        if bias_correction:
            u = momentum * buf / (1 - momentum ** (t + 1)) + (1 - momentum) * g / (1 - momentum**t)
        p = p * (1 - lr * wd) - lr * max(1, p.shape[1] / p.shape[0]) ** 0.5 * orthogonal(u)
    return p


def by_torch(make):
    def f(p, grads):
        t = torch.nn.Parameter(torch.from_numpy(p.copy()))
        optimizer = make([t])
        for g in grads:
            t.grad = torch.from_numpy(g.copy())
            optimizer.step()
        return t.detach().numpy()

    return f


def adamw(lr, wd):
    return by_torch(lambda p: torch.optim.AdamW(p, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=wd))


RULES = {
    "lion": lambda p, g: lion(p, g, 0.01, 0.1),
    "adafactor": by_torch(lambda p: torch.optim.Adafactor(p, lr=0.05, eps=(1.1920929e-07, 1e-3), weight_decay=0.1)),
    "muon": lambda p, g: muon(p, g, 0.02, 0.1) if p.ndim == 2 else adamw(0.001, 0.1)(p, g),
    "muon_optax": lambda p, g: muon(p, g, 0.02, 0.1, bias_correction=True) if p.ndim == 2 else adamw(0.001, 0.1)(p, g),
    "muon_plain": lambda p, g: muon(p, g, 0.02, 0.0, 0.9, False) if p.ndim == 2 else adamw(0.001, 0.0)(p, g),
}


def main():
    datasets = {}
    for name, shape in SHAPES.items():
        p = store(rng(name).standard_normal(shape))
        grads = [store(rng(f"{name}{i}").standard_normal(shape)) for i in range(STEPS)]
        datasets[f"{name}.start"] = p
        datasets[f"{name}.grads"] = np.stack(grads)
        for rule, f in RULES.items():
            datasets[f"{name}.{rule}"] = f(p.astype(np.float64), [g.astype(np.float64) for g in grads])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.h5")
    write_named(path, datasets, {"steps": STEPS})
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
