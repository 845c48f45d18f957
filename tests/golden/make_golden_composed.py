#!/usr/bin/env python3
"""Windows, sizes of images and transposed convolutions, by PyTorch in float64: writes composed.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0. Of each case NAME: NAME.x and other inputs, NAME.y, NAME.dy, and
NAME.dx, NAME.dw, the gradients of sum(y dy). tests/lua/test_composed.lua has the same options.
"""

import os

import torch
import torch.nn.functional as F

from golden import rng, store, to_torch, write_named

datasets = {}


def case(name, f, **shapes):
    inputs = {}
    for key, shape in shapes.items():
        datasets[f"{name}.{key}"] = store(rng(name + key).standard_normal(shape))
        inputs[key] = to_torch(datasets[f"{name}.{key}"]).requires_grad_()
    y = f(**inputs)
    dy = store(rng(name + "dy").standard_normal(tuple(y.shape)))
    (y * to_torch(dy)).sum().backward()
    datasets[f"{name}.y"], datasets[f"{name}.dy"] = y.detach(), dy
    for key in inputs:
        datasets[f"{name}.d{key}"] = inputs[key].grad


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
    write_named(os.path.join(os.path.dirname(os.path.abspath(__file__)), "composed.h5"), datasets, {})


if __name__ == "__main__":
    main()
