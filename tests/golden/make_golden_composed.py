#!/usr/bin/env python3
"""Windows, sizes of images, transposed convolutions, products, unit vectors, recurrences and BatchNorm, by PyTorch in float64: writes composed.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0. Of each case NAME: NAME.x and other inputs, NAME.y, NAME.dy, and
NAME.dx, NAME.dw and others, the gradients of sum(y dy). tests/lua/test_composed.lua has the same options.
"""

import os

import torch
import torch.nn.functional as F

from golden import rng, store, to_torch, write_named

datasets = {}


def case(name, f, zeros=(), **shapes):
    """zeros: flat positions of x that are 0."""
    inputs = {}
    for key, shape in shapes.items():
        values = rng(name + key).standard_normal(shape)
        if key == "x":
            values.flat[list(zeros)] = 0
        datasets[f"{name}.{key}"] = store(values)
        inputs[key] = to_torch(datasets[f"{name}.{key}"]).requires_grad_()
    y = f(**inputs)
    dy = store(rng(name + "dy").standard_normal(tuple(y.shape)))
    (y * to_torch(dy)).sum().backward()
    datasets[f"{name}.y"], datasets[f"{name}.dy"] = y.detach(), dy
    for key in inputs:
        datasets[f"{name}.d{key}"] = inputs[key].grad


def linear_scan(a, x, dim, reverse=False):
    steps = list(zip(a.expand_as(x).unbind(dim), x.unbind(dim)))
    h, out = 0, []
    for a_t, x_t in reversed(steps) if reverse else steps:
        h = a_t * h + x_t
        out.append(h)
    return torch.stack(out[::-1] if reverse else out, dim)


def batch_norm(x, w, b, buffers):
    y = F.batch_norm(x, buffers[0], buffers[1], w, b, training=True, momentum=0.3, eps=1e-4)
    return y + F.batch_norm(2 * x, buffers[0], buffers[1], w, b, eps=1e-4)


def main():
    case("unfold.middle", lambda x: x.unfold(1, 3, 2), x=(2, 8, 3))
    case("unfold.last", lambda x: x.unfold(-1, 4, 1), x=(5, 4))
    case("interpolate.nearest", lambda x: F.interpolate(x, scale_factor=3), x=(2, 3, 2, 4))
    case("interpolate.nearest_size", lambda x: F.interpolate(x, size=(7, 3)), x=(1, 2, 3, 5))
    case("interpolate.line", lambda x: F.interpolate(x, size=9, mode="linear"), x=(2, 3, 4))
    case("interpolate.up", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x=(1, 2, 3, 5))
    case("interpolate.down", lambda x: F.interpolate(x, size=(2, 3), mode="bilinear"), x=(1, 2, 7, 8))
    case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, stride=3, padding=1, output_padding=2),
         x=(2, 4, 5), w=(4, 3, 4), b=(3,))
    case("conv_transpose2d",
         lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2, dilation=(1, 2)),
         x=(2, 4, 3, 5), w=(4, 3, 3, 2), b=(6,))
    case("prod.all", lambda x: x.prod(), x=(3, 5))
    case("prod.middle", lambda x: x.prod(1), x=(2, 7, 3), zeros=(3, 24, 27))
    case("prod.keep", lambda x: x.prod(-1, keepdim=True), x=(4, 6))
    case("cumprod", lambda x: x.cumprod(1), x=(2, 9, 3), zeros=(12, 30, 36))
    case("normalize", lambda x: F.normalize(x, dim=1), x=(3, 4, 2))
    case("normalize.eps", lambda x: F.normalize(x, eps=2.0), x=(6, 3), zeros=(0, 1, 2))
    case("linear_scan.first", lambda x, a: linear_scan(a, x, 0), x=(5,), a=(5,))
    case("linear_scan.middle", lambda x, a: linear_scan(a, x, 1), x=(2, 6, 3), a=(2, 6, 3))
    case("linear_scan.reverse", lambda x, a: linear_scan(a, x, 2, True), x=(2, 3, 5), a=(3, 1))
    buffers = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    case("batch_norm", lambda x, w, b: batch_norm(x, w, b, buffers), x=(4, 3, 5), w=(3,), b=(3,))
    datasets["batch_norm.mean"], datasets["batch_norm.var"] = buffers
    write_named(os.path.join(os.path.dirname(os.path.abspath(__file__)), "composed.h5"), datasets, {})


if __name__ == "__main__":
    main()
