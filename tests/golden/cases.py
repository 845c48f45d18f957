"""Cases of operations, by PyTorch on the CPU in float64: what the generators of ops*.h5 share.

A case is one call: the datasets NAME.in1, NAME.in2 ... are its inputs, NAME.out1 ... what it returns, NAME.dout1 ... an
incoming gradient per result, NAME.grad1 ... the gradient of sum(out * dout) for input 1 ..., NAME.after1 ... an input
after the call when the operation works in place. Dimensions and indices count from 1 as in Lua; the formulas of the
generators subtract it.
"""

import os

import torch

from golden import rng, store, to_torch, write_packed

datasets, cases = {}, []


def case(name, inputs, f, attrs=None, grads=None, after=None, dtypes=None):
    """One call of the operation named by the part of `name` before the first dot.

    inputs: arrays or None (left out). f(*tensors): the result, or a tuple of them. grads: which inputs to differentiate
    (1-based; default: all the float ones). after: for an operation in place, {input: f(*tensors)}; then f is None.
    dtypes: {input: "bf16"} for what the test must convert first.
    """
    arrays = [None if a is None else store(a) for a in inputs]
    tensors = [None if a is None else to_torch(a) for a in arrays]
    entry = {"name": name, "op": name.split(".")[0], "n_in": len(inputs), "attrs": attrs or {}}
    entry["given"] = [i + 1 for i, a in enumerate(arrays) if a is not None]
    if dtypes:
        entry["dtypes"] = {str(i): d for i, d in dtypes.items()}
    for i, a in enumerate(arrays):
        if a is not None:
            datasets[f"{name}.in{i + 1}"] = a
    if after is not None:
        entry["after"] = sorted(after)
        for i, g in after.items():
            datasets[f"{name}.after{i}"] = g(*tensors)
    else:
        if grads is None:
            grads = [i + 1 for i, t in enumerate(tensors) if t is not None and t.is_floating_point()]
        for i in grads:
            tensors[i - 1].requires_grad_(True)
        out = f(*tensors)
        outs = out if isinstance(out, tuple) else (out,)
        entry["n_out"], entry["grads"] = len(outs), grads
        total = 0.0
        for j, o in enumerate(outs):
            datasets[f"{name}.out{j + 1}"] = o
            if grads:
                dout = store(rng(f"{name}.dout{j + 1}").standard_normal(tuple(o.shape)))
                datasets[f"{name}.dout{j + 1}"] = dout
                total = total + (o * to_torch(dout)).sum()
        if grads:
            found = torch.autograd.grad(total, [tensors[i - 1] for i in grads], allow_unused=True)
            for i, g in zip(grads, found):
                datasets[f"{name}.grad{i}"] = torch.zeros_like(tensors[i - 1]) if g is None else g
    cases.append(entry)


def normal(name, *shape):
    return rng(name).standard_normal(shape)


def uniform(name, *shape, low=0.0, high=1.0):
    return rng(name).uniform(low, high, shape)


def write(file):
    """Writes the cases that were made, into `file` beside this one."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
    write_packed(path, datasets, cases)
    print(f"{path}: {len(cases)} cases, {os.path.getsize(path)} bytes")
