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


# ---- sort, argsort, topk, cumsum, linear_scan ----


def linear_scan(a, b, d, reverse=False, lagged=False):
    """h[t] = a[t] h[t - 1] + b[t] along d; lagged: a[t - 1] h[t - 1]."""
    a, b = a.expand(b.shape).unbind(d), b.unbind(d)
    order = range(len(b))[::-1] if reverse else range(len(b))
    h, before = [None] * len(b), None
    for t in order:
        h[t] = b[t] if before is None else a[before if lagged else t] * h[before] + b[t]
        before = t
    return torch.stack(h, d)


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

    for name, a, b, dim in (
        ("cube", (3, 5, 4), (3, 5, 4), 2),
        ("last", (3, 5, 4), (3, 5, 4), -1),
        ("wide", (20, 67), (20, 67), 1),
        ("long", (2, 131), (2, 131), 2),
        ("decay", (33,), (2, 7, 33), 2),
        ("number", (), (3, 5, 4), 1),
        ("one", (1,), (1,), 1),
    ):
        inputs = [uniform(f"linear_scan a {name}", *a, low=-1, high=1), normal(f"linear_scan b {name}", *b)]
        for reverse in (False, True):
            for lagged in (False, True):
                scan = lambda a, b, r=reverse, l=lagged, d=dim - (dim > 0): linear_scan(a, b, d, r, l)
                case(f"linear_scan.{name}_{reverse}_{lagged}", inputs, scan,
                     {"dim": dim, "reverse": reverse, "lagged": lagged})
    for reverse in (False, True):
        moved = lambda x, r=reverse: torch.cat((x[:, 1:], 0 * x[:, :1]) if r else (0 * x[:, :1], x[:, :-1]), 1)
        inputs = [normal("linear_scan_grad x", *CUBE), normal("linear_scan_grad y", *CUBE)]
        case(f"linear_scan_grad.two_{reverse}", inputs, lambda x, y, m=moved: m(x) * y, {"dim": 2, "reverse": reverse})
        case(f"linear_scan_grad.one_{reverse}", inputs[:1], moved, {"dim": 2, "reverse": reverse})


# ---- scatter, scatter_add and scatter_reduce ----


def scatter_reduce_case(name, inputs, d, reduce, own, **options):
    def by(x, i, s):
        if not own:  # torch divides the gradient by one more where an element of x that does not count is equal by chance
            x = x.scatter(d, i, np.inf if x.is_floating_point() else 0)
        return x.scatter_reduce(d, i, s, reduce if reduce == "mean" else "a" + reduce, include_self=own)

    case(f"scatter_reduce.{name}", inputs, by, {"dim": d + 1, "reduce": reduce, "include_self": own}, **options)


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

    for d in range(3):
        size = [3, 5, 4]
        size[d] += 3
        size[(d + 1) % 3] -= 1
        index = rng(f"scatter{d}").integers(0, CUBE[d], size)
        for kind in ("dim", "ties"):
            x, src = normal("scatter_reduce", *CUBE), normal(f"scatter_reduce src{d}", *size)
            if kind == "ties":
                x, src = np.round(x), np.round(src)
            for reduce in ("max", "min", "mean"):
                for own in (True, False):
                    scatter_reduce_case(f"{kind}{d + 1}_{reduce}_{own}", [x, index, src], d, reduce, own)
    for reduce in ("max", "min", "mean"):
        for own in (True, False):
            scatter_reduce_case(f"empty_{reduce}_{own}", empty, 0, reduce, own)
            long = [normal("scatter_reduce long", 131), rng("scatter_reduce").integers(0, 131, 400),
                    normal("scatter_reduce long src", 400)]
            scatter_reduce_case(f"long_{reduce}_{own}", long, 0, reduce, own)
            if reduce != "mean":
                scatter_reduce_case(f"i32_{reduce}_{own}", i32, 0, reduce, own)
                special = [np.array([np.nan, 0.0, 1, -np.inf, 2]), np.array([1, 2, 2, 3, 4, 4]),
                           np.array([np.nan, -np.inf, np.inf, -np.inf, np.nan, 3.0])]
                scatter_reduce_case(f"special_{reduce}_{own}", special, 0, reduce, own, grads=[])

    x = normal("select", *CUBE)
    for d in range(3):
        ids = rng(f"select{d}").integers(0, CUBE[d], 9)
        case(f"index_select.dim{d + 1}", [x, ids], lambda x, i, d=d: x.index_select(d, i), {"dim": d + 1})
    ids = rng("select2").integers(0, 5, (2, 3))
    case("index_select.matrix", [x, ids], lambda x, i: x[:, i], {"dim": -2})
    case("index_select.one", [x, np.array(2)], lambda x, i: x.select(2, 2), {"dim": 3})
    case("index_select.none", [x, np.zeros(0, np.int64)], lambda x, i: x[:, :0], {"dim": 2})
    case("index_select.i32", [integers("select i32", 7), ids], lambda x, i: x[i], {})
    for name, ids in (("vector", ids[0]), ("matrix", ids), ("one", np.array(3)), ("empty", np.zeros((0, 2), np.int64))):
        one_hot = lambda i: torch.nn.functional.one_hot(i, 6)
        case(f"one_hot.{name}", [ids], lambda i, f=one_hot: f(i).double(), {"classes": 6})
        case(f"one_hot.{name}_i32", [ids], one_hot, {"classes": 6, "dtype": "i32"})
    sparse = normal("nonzero", *CUBE)
    sparse[sparse < 0.5] = 0
    for name, x in (("cube", sparse), ("i32", integers("nonzero", 40, low=-1, high=2)), ("none", np.zeros((2, 3))),
                    ("empty", np.zeros((0, 3))), ("nan", np.array([0.0, np.nan, -0.0, np.inf]))):
        case(f"nonzero.{name}", [x], lambda x: x.nonzero().int(), grads=[])


# ---- flip, roll, tile, expand, stack, pad, tril, triu ----


def arrange_cases():
    x = normal("arrange", *CUBE)
    inputs = {"cube": x, "i32": integers("arrange i32", 4, 6), "row": normal("arrange row", 1, 67), "one": normal("a1", 1),
              "empty": normal("arrange empty", 0, 3), "u8": integers("arrange u8", 3, 7, low=0, high=256)}

    def each(op, f, attrs, name="", least=1):
        """f(x, dim) with the option dim, for some inputs and dimensions."""
        for key, x in inputs.items():
            options = {"dtypes": {1: key}} if key == "u8" else {}
            for d in range(x.ndim) if key == "cube" else (0,):
                if x.ndim >= least:
                    case(f"{op}.{key}{name}_dim{d + 1}", [x], lambda x, d=d: f(x, d), dict(attrs, dim=d + 1), **options)

    each("flip", lambda x, d: x.flip(d), {})
    case("flip.two", [x], lambda x: x.flip(0, 2), {"dim": [1, 3]})
    case("flip.neighbours", [x], lambda x: x.flip(1, 2), {"dim": [3, 2]})
    case("flip.all", [x], lambda x: x.flip(0, 1, 2), {})
    for shift in (0, 1, -2, 100):
        each("roll", lambda x, d, s=shift: x.roll(s, d), {"shift": shift}, f"_{shift}")
    case("roll.all", [x], lambda x: x.roll(7), {"shift": 7})
    for name, x in inputs.items():
        options = {"dtypes": {1: name}} if name == "u8" else {}
        for times in ((2, 1, 3), (1, 1, 1), (2, 0, 1), (3, 2, 2, 2)):
            if len(times) >= x.ndim:
                suffix = "x".join(map(str, times))
                case(f"tile.{name}_{suffix}", [x], lambda x, t=times: x.repeat(*t), {"times": list(times)}, **options)
        if x.ndim == 2:
            for diagonal in (0, 1, -2, 9, -9):
                for op, f in (("tril", torch.tril), ("triu", torch.triu)):
                    by = lambda x, f=f, k=diagonal: f(x.long() if x.dtype == torch.bool else x, k)
                    case(f"{op}.{name}_{diagonal}", [x], by, {"diagonal": diagonal}, **options)
            pad = lambda x: torch.nn.functional.pad(x, (0, 2, 1, 3), value=7)
            case(f"pad.{name}", [x], pad, {"before": [1, 0], "after": [3, 2], "value": 7}, **options)
    x = inputs["cube"]
    case("tril.cube", [x], torch.tril, {})
    case("triu.cube", [x], lambda x: torch.triu(x, 1), {"diagonal": 1})
    case("pad.cube", [x], lambda x: torch.nn.functional.pad(x, (2, 1, 0, 0, 0, 1)), {"before": [0, 0, 2], "after": [1, 0, 1]})
    case("pad.first", [x], lambda x: torch.nn.functional.pad(x, (0, 0, 0, 0, 2, 1), value=-0.5),
         {"before": [2, 0, 0], "after": [1, 0, 0], "value": -0.5})
    for mode in ("reflect", "replicate", "circular"):
        pad = torch.nn.functional.pad
        case(f"pad.{mode}", [normal("p" + mode, 2, 3, 5, 6)], lambda x: pad(x, (2, 1, 3, 0), mode=mode),
             {"before": [0, 0, 3, 2], "after": [0, 0, 0, 1], "mode": mode})
        case(f"pad.{mode}_most", [normal("m" + mode, 2, 1, 5)], lambda x: pad(x, (4, 4), mode=mode),
             {"before": [0, 0, 4], "after": [0, 0, 4], "mode": mode})
    case("pad.replicate_far", [normal("far", 1, 1, 2)], lambda x: torch.nn.functional.pad(x, (5, 7), mode="replicate"),
         {"before": [0, 0, 5], "after": [0, 0, 7], "mode": "replicate"})
    for name, sides in (("last", [2, 1]), ("two", [0, 2, 1, 3]), ("all", [1, 0, 0, 2, 3, 1])):
        case(f"pad.sides_{name}", [x], lambda x, s=sides: torch.nn.functional.pad(x, s), {"sides": sides})
    case("pad.before", [x], lambda x: torch.nn.functional.pad(x, (2, 0, 1, 0, 0, 0)), {"before": [0, 1, 2]})
    case("pad.none", [x], lambda x: x.clone(), {"before": [0, 0, 0], "after": [0, 0, 0]})
    case("pad.scalar", [np.array(3.0)], lambda x: x.clone(), {"before": [], "after": []})
    for name, shape, to in (("row", (4,), (3, 4)), ("column", (3, 1), (3, 4)), ("middle", (2, 1, 3), (2, 4, 3)),
                            ("scalar", (), (2, 3)), ("same", (2, 3), (2, 3)), ("none", (1, 3), (0, 3)),
                            ("kept", (1, 3), (2, -1)), ("outer", (1, 3, 1), (5, 2, 3, 4))):
        case(f"expand.{name}", [normal(f"expand {name}", *shape)], lambda x, t=to: x.expand(*t), {"shape": list(to)})
    for d in range(-1, 3):
        parts = [normal(f"stack {i}", 3, 4) for i in range(3)]
        case(f"stack.dim{d}", parts, lambda *t, d=d: torch.stack(t, d), {"dim": d + (d >= 0)})
    case("stack.one", [normal("stack one", 2)], lambda t: t[None], {})
    case("stack.scalars", [normal("s"), normal("t")], lambda *t: torch.stack(t), {})
    case("stack.i32", [integers("stack i", 5), integers("stack j", 5)], lambda *t: torch.stack(t, 1), {"dim": 2})


# ---- reductions over several dimensions: sum, mean, max, min, any, all, var, std, norm, logsumexp; argmin; softmax ----


def dims_of(dims):
    """The option for dimensions counted from 0."""
    dims = [d + (d >= 0) for d in dims]
    return dims[0] if len(dims) == 1 else dims


def reduce_cases():
    inputs = {"cube": normal("reduce", *CUBE), "four": normal("reduce four", 2, 3, 1, 4), "long": normal("reduce long", 2, 131),
              "one": normal("reduce one", 1), "far": 30 + normal("reduce far", 4, 21)}
    floats = {
        "sum": torch.sum,
        "mean": torch.mean,
        "max": torch.amax,
        "min": torch.amin,
        "var": torch.var,
        "std": torch.std,
        "norm": torch.linalg.vector_norm,
        "logsumexp": torch.logsumexp,
    }
    some = {"cube": ((0,), (1,), (-1,), (0, 2), (1, 2), (2, 0, 1)), "four": ((0, 3), (1, 3), (0, 2)), "long": ((0,), (1,))}
    for op, f in floats.items():
        for name, x in inputs.items():
            degenerate = op in ("var", "std") and x.size == 1
            everything = tuple(range(x.ndim))
            if degenerate:
                continue
            for dims in some.get(name, ()) + (everything,):
                if op == "std" and (name, dims) == ("long", (0,)):  # of two elements: |a - b|, which has a kink
                    continue
                attrs = {"dim": dims_of(dims)}
                suffix = "".join(map(str, dims))
                case(f"{op}.{name}_dims{suffix}", [x], lambda x, f=f, d=dims: f(x, dim=d), attrs)
            if name == "cube":
                keep = lambda x, f=f: f(x, dim=(0, 2), keepdim=True)
                case(f"{op}.keepdim", [x], keep, {"dim": [1, 3], "keepdim": True})
            case(f"{op}.{name}_all", [x], lambda x, f=f, d=everything: f(x, dim=d), {})
    x = inputs["cube"]
    ties = np.round(x)
    for op in ("max", "min"):
        case(f"{op}.ties", [ties], lambda x, f=floats[op]: f(x, dim=(0, 2)), {"dim": [1, 3]})
        case(f"{op}.i32", [integers("extreme", 5, 7)], lambda x, f=floats[op]: f(x, dim=1), {"dim": 2})
        case(f"{op}.i32_columns", [integers("extreme", 5, 7)], lambda x, f=floats[op]: f(x, dim=0), {"dim": 1})
        case(f"{op}.u8", [integers("extreme u8", 9, low=0, high=256)], floats[op], {}, dtypes={1: "u8"})
    for correction in (0, 2):
        for op in ("var", "std"):
            by = lambda x, f=floats[op], c=correction: f(x, dim=(1, 2), correction=c)
            case(f"{op}.correction{correction}", [x], by, {"dim": [2, 3], "correction": correction})
    flat = np.ones((2, 5))
    flat[1] = np.arange(5)
    case("std.flat", [flat], lambda x: x.std(1), {"dim": 2})
    case("norm.zero", [flat - 1], lambda x: torch.linalg.vector_norm(x, dim=1), {"dim": 2})
    case("norm.empty", [normal("ne", 2, 0)], lambda x: torch.linalg.vector_norm(x, dim=1), {"dim": 2})
    infinite = np.array([[-np.inf, -np.inf, -np.inf], [1.0, np.inf, 2.0], [-np.inf, 3.0, 1.0], [500.0, 499.0, -500.0]])
    case("logsumexp.infinite", [infinite], lambda x: x.logsumexp(1), {"dim": 2}, grads=[])
    case("logsumexp.large", [infinite[3:]], lambda x: x.logsumexp(1), {"dim": 2})
    case("logsumexp.empty", [normal("le", 2, 0)], lambda x: x.logsumexp(1), {"dim": 2})
    sparse = {"cube": np.where(x > 0.9, x, 0.0), "i32": integers("any", 3, 4, low=0, high=2), "nan": np.array([[np.nan], [-0.0]]),
              "empty": np.zeros((3, 0)), "full": np.ones((2, 300))}
    for op, f in (("any", torch.any), ("all", torch.all)):
        for name, y in sparse.items():
            case(f"{op}.{name}", [y], lambda y, f=f: f(y, dim=1), {"dim": 2}, grads=[])
            case(f"{op}.{name}_first", [y], lambda y, f=f: f(y, dim=0), {"dim": 1}, grads=[])
            case(f"{op}.{name}_all", [y], lambda y, f=f: f(y), {}, grads=[])
        case(f"{op}.two", [sparse["cube"]], lambda y, f=f: f(f(y, dim=2), dim=0), {"dim": [1, 3]}, grads=[])
    special = np.array([[1.5, np.nan, -2, np.nan], [2.0, -3.0, -3.0, 0.0]])
    for name, y in (("cube", x), ("ties", ties), ("special", special), ("i32", integers("argmin", 5, 7))):
        for d in range(y.ndim):
            case(f"argmin.{name}_dim{d + 1}", [y], lambda y, d=d: y.argmin(d).int(), {"dim": d + 1}, grads=[])
        if name != "special":
            case(f"argmin.{name}_all", [y], lambda y: y.argmin().int(), {}, grads=[])
    case("argmin.keepdim", [x], lambda y: y.argmin(1, keepdim=True).int(), {"dim": 2, "keepdim": True}, grads=[])
    for op, f in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        for d in (0, 1, -2, 2):
            case(f"{op}.dim{d}", [x], lambda x, f=f, d=d: f(x, d), {"dim": d + (d >= 0)})
        case(f"{op}.tall", [normal("tall", 70, 67)], lambda x, f=f: f(x, 0), {"dim": 1})
        case(f"{op}.no_columns", [normal("none", 3, 2, 0)], lambda x, f=f: f(x, 1), {"dim": 2})


if __name__ == "__main__":
    order_cases()
    index_cases()
    arrange_cases()
    reduce_cases()
    write("ops_order.h5")
