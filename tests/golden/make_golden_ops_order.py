#!/usr/bin/env python3
"""Expected values and gradients of reductions, orders, indices and random draws: writes ops_order.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import numpy as np
import torch

from cases import case, normal, uniform, write
from golden import rng

CUBE = (3, 5, 4)


def integers(name, *shape, low=-9, high=10):
    return rng(name).integers(low, high, shape)


# ---- sort, argsort, topk, cumsum ----


def order_cases():
    special = np.array([[1.5, np.nan, -2, 1.5, -np.inf], [0.0, -0.0, np.inf, -0.0, np.nan]])
    inputs = {
        "cube": normal("order", *CUBE),
        "long": normal("order long", 2, 131),
        "one": normal("order one", 1),
        "empty": normal("order empty", 0, 3),
        "special": special,
        "i32": integers("order i32", 3, 40),
        "u8": integers("order u8", 3, 40, low=0, high=256),
        "i8": integers("order i8", 2, 40, low=-128, high=128),
    }
    for name, x in inputs.items():
        options = {"dtypes": {1: name}} if name in ("u8", "i8") else {}
        if name == "special":
            options["grads"] = []
        for dim in (1, 2, -1) if name == "cube" else (-1,):
            for descending in (False, True):
                attrs = {"dim": dim, "descending": descending}
                d = dim - (dim > 0)

                def by(x, d=d, descending=descending):
                    values, ids = torch.sort(x, dim=d, descending=descending, stable=True)
                    return values, ids.int()

                suffix = f"{name}.dim{dim}_{descending}"
                case(f"sort.{suffix}", [x], by, attrs, **options)
                case(f"argsort.{suffix}", [x], lambda x, by=by: by(x)[1], attrs, **dict(options, grads=[]))
        for smallest in (False, True):
            for k in (0, 1, 3, 100):
                if k > x.shape[-1]:
                    continue

                def top(x, k=k, smallest=smallest):  # torch.topk leaves the order of ties open
                    values, ids = torch.sort(x, descending=not smallest, stable=True)
                    return values[..., :k], ids[..., :k].int()

                case(f"topk.{name}_{k}_{smallest}", [x], top, {"k": k, "smallest": smallest}, **options)
    x = normal("topk dim", *CUBE)
    case("topk.dim", [x], lambda x: tuple(t.int() if i else t for i, t in enumerate(x.topk(2, 1))), {"k": 2, "dim": 2})

    sums = {
        "cube": normal("cumsum", *CUBE),
        "long": normal("cumsum long", 2, 131),
        "wide": normal("cumsum wide", 70, 33),
        "one": normal("cumsum one", 1),
        "empty": normal("cumsum empty", 0, 3),
        "none": normal("cumsum none", 3, 0),
        "i32": integers("cumsum i32", 3, 40),
        "u8": integers("cumsum u8", 3, 40, low=0, high=256),
    }
    for name, x in sums.items():
        options = {"dtypes": {1: name}} if name == "u8" else {}
        for dim in (1, 2, -1) if name == "cube" else (1,) if name == "wide" else (-1,):
            d = dim - (dim > 0)
            case(f"cumsum.{name}_dim{dim}", [x], lambda x, d=d: x.cumsum(d), {"dim": dim}, **options)
            backwards = lambda x, d=d: x.flip(d).cumsum(d).flip(d)
            case(f"cumsum.{name}_reverse{dim}", [x], backwards, {"dim": dim, "reverse": True}, **options)


# ---- scatter and scatter_add ----


def index_cases():
    x = normal("scatter", *CUBE)
    for d in range(3):
        size = [3, 5, 4]
        size[d] += 3  # more than x has, so that some occur twice
        size[(d + 1) % 3] -= 1
        index = rng(f"scatter{d}").integers(0, CUBE[d], size)
        src = normal(f"scatter src{d}", *size)
        add = lambda x, i, s, d=d: x.scatter_add(d, i, s)
        case(f"scatter_add.dim{d + 1}", [x, index, src], add, {"dim": d + 1})

        def replace(x, i, s, d=d):  # by hand, as torch leaves open which of several wins: here the last
            for j in range(i.shape[d]):
                x = x.scatter(d, i.narrow(d, j, 1), s.narrow(d, j, 1))
            return x

        case(f"scatter.dim{d + 1}", [x, index, src], replace, {"dim": d + 1})
    empty = [normal("scatter empty", 2, 3), np.zeros((0, 3), np.int64), normal("scatter none", 0, 3)]
    case("scatter_add.empty", empty, lambda x, i, s: x.scatter_add(0, i, s), {"dim": 1})
    case("scatter.empty", empty, lambda x, i, s: x.scatter(0, i, s), {"dim": 1})
    i32 = [integers("scatter i32", 7), rng("scatter ids").integers(0, 7, 20), integers("scatter i32 src", 20)]
    case("scatter_add.i32", i32, lambda x, i, s: x.scatter_add(0, i, s), {"dim": -1})


if __name__ == "__main__":
    order_cases()
    index_cases()
    write("ops_order.h5")
