#!/usr/bin/env python3
"""Recurrent cells and layers over a short sequence, by PyTorch in float64: writes nn.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0. Weights are stored as (inputs, outputs).
"""

import os

import torch

from golden import rng, store, to_torch, write_named

B, S, IN, N = 3, 4, 5, 7


def main():
    datasets = {"x": store(rng("x").standard_normal((B, S, IN)))}
    x = to_torch(datasets["x"])
    for name, cell, gates in (("lstm", torch.nn.LSTMCell(IN, N), 4), ("gru", torch.nn.GRUCell(IN, N), 3)):
        for kind, n in (("input", IN), ("state", N)):
            w = store(0.5 * rng(name + kind).standard_normal((n, gates * N)))
            b = store(0.5 * rng(name + kind + "bias").standard_normal(gates * N))
            datasets[f"{name}.{kind}.weight"], datasets[f"{name}.{kind}.bias"] = w, b
            part = "ih" if kind == "input" else "hh"
            getattr(cell, f"weight_{part}").data = to_torch(w).T.contiguous()
            getattr(cell, f"bias_{part}").data = to_torch(b)
        state, outputs = None, []
        for s in range(S):
            state = cell(x[:, s], state)
            outputs.append(state[0] if name == "lstm" else state)
        y = torch.stack(outputs, 1)
        datasets[f"{name}.y"] = y
        y.square().sum().backward()
        datasets[f"{name}.grad"] = cell.weight_hh.grad.T.contiguous()
    write_named(os.path.join(os.path.dirname(os.path.abspath(__file__)), "nn.h5"), datasets, {})


if __name__ == "__main__":
    main()
