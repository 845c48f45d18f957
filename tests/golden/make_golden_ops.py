#!/usr/bin/env python3
"""Expected values and gradients of every operation, by PyTorch on the CPU in float64: writes ops.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import numpy as np
import torch
from torch.nn import functional as F

from cases import case, normal, uniform, write
from golden import rng, to_torch

# ---- matmul: a (..., m, k) times b (k, n) shared or with a's leading dimensions ----


def matmul_cases():
    def product(trans_a, trans_b):
        def f(a, b, bias=None):
            c = torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)
            return c if bias is None else c + bias

        return f

    def one(name, a, b, bias=None, trans_a=False, trans_b=False):
        arrays = [normal(name + "a", *a), normal(name + "b", *b)]
        if bias:
            arrays.append(normal(name + "bias", bias))
        attrs = {k: True for k, v in (("trans_a", trans_a), ("trans_b", trans_b)) if v}
        case("matmul." + name, arrays, product(trans_a, trans_b), attrs)

    one("plain", (5, 7), (7, 3))
    one("wide", (17, 33), (33, 19))
    one("trans_a", (7, 5), (7, 3), trans_a=True)
    one("trans_b", (5, 7), (3, 7), trans_b=True)
    one("trans_both", (7, 5), (3, 7), trans_a=True, trans_b=True)
    one("shared", (2, 3, 7), (7, 5))
    one("shared4", (2, 2, 3, 7), (7, 5))
    one("shared_trans_b", (2, 3, 7), (5, 7), trans_b=True)
    one("batched", (2, 3, 4, 5), (2, 3, 5, 6))
    one("batched_trans_a", (3, 5, 4), (3, 5, 6), trans_a=True)
    one("batched_trans_b", (3, 4, 5), (3, 6, 5), trans_b=True)
    one("batched_trans_both", (3, 5, 4), (3, 6, 5), trans_a=True, trans_b=True)
    one("bias", (2, 3, 7), (7, 5), bias=5)
    one("bias_trans_b", (4, 7), (5, 7), bias=5, trans_b=True)
    one("one_by_one", (1, 1), (1, 1))
    one("row_column", (1, 9), (9, 1))
    one("column_row", (9, 1), (1, 9))
    one("no_rows", (0, 7), (7, 3))
    one("no_columns", (3, 7), (7, 0))
    one("no_inner", (3, 0), (0, 4))
    one("no_inner_bias", (3, 0), (0, 4), bias=4)

    def columns(x):
        return x.flatten(0, -2).sum(0) if x.dim() > 1 else x

    for name, shape in (("vector", (7,)), ("matrix", (5, 7)), ("batch", (2, 3, 17)), ("tall", (300, 3)), ("empty", (0, 4))):
        case("column_sum." + name, [normal("columns" + name, *shape)], columns, grads=[])

    def accumulate(name, c, a, b, trans_a=False, trans_b=False):
        def f(c, a, b):
            a2 = a.flatten(0, -2)
            b2 = b.flatten(0, -2)
            return c + (a2.mT if trans_a else a2) @ (b2.mT if trans_b else b2)

        attrs = {k: True for k, v in (("trans_a", trans_a), ("trans_b", trans_b)) if v}
        arrays = [normal(name + "c", *c), normal(name + "a", *a), normal(name + "b", *b)]
        case("matmul_acc." + name, arrays, None, attrs, after={1: f})

    accumulate("plain", (5, 3), (5, 7), (7, 3))
    accumulate("weight", (7, 5), (6, 7), (6, 5), trans_a=True)
    accumulate("weight_flattened", (7, 5), (2, 3, 7), (2, 3, 5), trans_a=True)
    accumulate("trans_b", (5, 3), (5, 7), (3, 7), trans_b=True)
    accumulate("no_inner", (3, 4), (3, 0), (0, 4))


# ---- elementwise ----


def elementwise_cases():
    pairs = {
        "same": ((3, 5), (3, 5)),
        "long": ((2, 67), (2, 67)),
        "row": ((2, 3, 5), (5,)),
        "matrix": ((2, 3, 5), (3, 5)),
        "column": ((3, 5), (3, 1)),
        "left": ((5,), (2, 3, 5)),
        "outer": ((2, 1, 5), (1, 3, 1)),
        "middle": ((2, 3, 5), (2, 1, 5)),
        "scalar_right": ((3, 7), ()),
        "scalar_left": ((), (3, 7)),
        "ones": ((1,), (1, 1)),
        "empty": ((0, 5), (5,)),
        "empty_inner": ((3, 0), (3, 1)),
    }
    binary = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
    }
    for op, f in binary.items():
        for shape_name, (a, b) in pairs.items():
            name = f"{op}.{shape_name}"
            y = normal(name + "b", *b)
            if op == "div":  # away from zero, both signs
                y = np.sign(y) * (0.5 + np.abs(y))
            case(name, [normal(name + "a", *a), y], f)
    compare = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
    for op, f in compare.items():
        for shape_name in ("long", "row", "outer", "scalar_right", "empty"):
            a, b = pairs[shape_name]
            name = f"{op}.{shape_name}"
            arrays = [np.round(2 * normal(name + "a", *a)), np.round(2 * normal(name + "b", *b))]  # with ties
            case(name, arrays, f, grads=[])
    for shape_name, shapes in {
        "same": ((3, 67), (3, 67), (3, 67)),
        "row_condition": ((5,), (2, 3, 5), (2, 3, 5)),
        "broadcast": ((2, 1, 5), (3, 1), ()),
        "empty": ((0,), (0,), (1,)),
    }.items():
        name = f"where.{shape_name}"
        c, a, b = (normal(name + str(i), *s) for i, s in enumerate(shapes))
        case(name, [(c > 0).astype(np.uint8), a, b], torch.where)

    unary = {
        "exp": (torch.exp, -3, 3),
        "log": (torch.log, 0.1, 5),
        "sqrt": (torch.sqrt, 0.1, 5),
        "rsqrt": (torch.rsqrt, 0.1, 5),
        "abs": (torch.abs, -3, 3),
        "tanh": (torch.tanh, -3, 3),
        "sigmoid": (torch.sigmoid, -6, 6),
        "square": (torch.square, -3, 3),
        "sin": (torch.sin, -7, 7),
        "cos": (torch.cos, -7, 7),
        "relu": (torch.relu, -3, 3),
        "silu": (F.silu, -6, 6),
        "gelu": (lambda x: F.gelu(x, approximate="tanh"), -4, 4),
    }
    sizes = {"long": (3, 67), "one": (1,), "scalar": (), "empty": (2, 0)}
    for op, (f, low, high) in unary.items():
        for size_name, size in sizes.items():
            name = f"{op}.{size_name}"
            case(name, [uniform(name, *size, low=low, high=high)], f)
    case("gelu.exact", [uniform("gelu.exact", 3, 67, low=-4, high=4)], F.gelu, {"approximate": "none"})
    # Far from the origin: no overflow, and the right limits of value and slope.
    far = np.array([-1e4, -200.0, -100.0, -30.0, 30.0, 100.0, 200.0, 1e4])
    for op in ("tanh", "sigmoid", "relu", "silu", "gelu"):
        case(f"{op}.far", [far], unary[op][0])
    case("gelu.exact_far", [far], F.gelu, {"approximate": "none"})

    for name, scale, shift in (("both", -1.75, 0.3), ("scale", 2.5, None), ("shift", None, -1.25)):
        attrs = {k: v for k, v in (("scale", scale), ("shift", shift)) if v is not None}
        s, t = 1.0 if scale is None else scale, 0.0 if shift is None else shift
        case("affine." + name, [normal("affine" + name, 3, 23)], lambda x, s=s, t=t: x * s + t, attrs)
    case("affine.empty", [normal("e", 0)], lambda x: x * 2, {"scale": 2})
    for exponent in (2, 3, 0.5, -1.5):
        name = f"pow.{exponent}"
        x = uniform(name, 2, 19, low=0.3, high=2.5)
        case(name, [x], lambda x, e=exponent: torch.pow(x, e), {"exponent": exponent})
    case("pow.negative_base", [uniform("pn", 9, low=-2, high=-0.5)], lambda x: torch.pow(x, 3), {"exponent": 3})
    case("add_.long", [normal("aac", 3, 23), normal("aax", 3, 23)], None, after={1: torch.add})
    case("add_.empty", [normal("aac", 0), normal("aax", 0)], None, after={1: torch.add})

    acts = {"silu": F.silu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "relu": torch.relu}
    for act, f in acts.items():
        for size_name, size in (("long", (3, 67)), ("one", (1, 1)), ("empty", (0, 4))):
            name = f"gated.{act}_{size_name}"
            g, u = uniform(name + "g", *size, low=-4, high=4), normal(name + "u", *size)
            case(name, [g, u], lambda g, u, f=f: f(g) * u, {"activation": act})

    def clamped(limit):  # of GPT-OSS
        def f(g, u):
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
            return g * torch.sigmoid(1.702 * g) * (u + 1)

        return f

    for size_name, size, limit in (("long", (3, 67), 2.5), ("one", (1, 1), 1.0), ("empty", (0, 4), 7.0)):
        name = f"gated.gpt_oss_{size_name}"
        g, u = uniform(name + "g", *size, low=-4, high=4), uniform(name + "u", *size, low=-4, high=4)
        for x in (g, u):  # a limit between two values of a finite difference is no slope
            x[abs(abs(x) - limit) < 0.1] += 0.2
        case(name, [g, u], clamped(limit), {"activation": "gpt_oss", "limit": limit})


# ---- cast: float to integer rounds toward zero and saturates ----


def cast_cases():
    x = np.array([-1e9, -300.0, -129.0, -128.9, -2.7, -1.0, -0.5, 0.0, 0.5, 0.99, 1.5, 2.5, 127.2, 128.0, 255.9, 256.0, 3e9])
    for dtype, low, high in (("i32", -(2.0**31), 2.0**31 - 1), ("i8", -128, 127), ("u8", 0, 255)):
        name = f"cast.{dtype}"
        case(name, [x], lambda x, a=low, b=high: torch.trunc(x).clamp(a, b), {"dtype": dtype}, grads=[])
    case("cast.f32", [normal("cast.f32", 3, 23)], lambda x: x, {"dtype": "f32"})
    # Ties of the 16th bit go to even: 1 + 2^-8 down, 1 + 3 * 2^-8 up.
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 1.0, 3.3895e38, 1e-30, 0.1, 1 / 3])
    to_bf16 = lambda x: x.to(torch.float32).to(torch.bfloat16).to(torch.float64)
    case("cast.bf16", [ties], to_bf16, {"dtype": "bf16"})
    case("cast.from_i32", [np.array([[-70000, -1, 0], [1, 5, 16777216]])], lambda x: x.double(), {"dtype": "f32"}, grads=[])
    case("cast.empty", [normal("ce", 0, 3)], to_bf16, {"dtype": "bf16"})


# ---- reductions ----


def reduce_cases():
    shapes = {"cube": (3, 5, 7), "long": (2, 131), "row": (1, 9), "column": (9, 1), "one": (1,)}
    calls = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
    for op, f in calls.items():
        for shape_name, shape in shapes.items():
            x = normal(f"{op}.{shape_name}", *shape)
            case(f"{op}.{shape_name}_all", [x], lambda x, f=f: f(x, dim=tuple(range(x.ndim))))
            for d in range(len(shape)):
                case(f"{op}.{shape_name}_dim{d + 1}", [x], lambda x, f=f, d=d: f(x, dim=d), {"dim": d + 1})
        x = normal(op + "keep", 3, 5, 7)
        case(f"{op}.last_keep", [x], lambda x, f=f: f(x, dim=-1, keepdim=True), {"dim": -1, "keepdim": True})
        case(f"{op}.second_keep", [x], lambda x, f=f: f(x, dim=1, keepdim=True), {"dim": 2, "keepdim": True})
        case(f"{op}.no_rows", [normal(op, 0, 4)], lambda x, f=f: f(x, dim=1), {"dim": 2})
    case("sum.nothing", [normal("s", 0, 4)], lambda x: torch.sum(x, dim=0), {"dim": 1})
    case("sum.nothing_all", [normal("s", 0, 4)], torch.sum)
    case("sum.scalar", [normal("s")], torch.sum)
    # The gradient of broadcasting: sums over the dimensions along which the shape would grow.
    x = normal("reduce_to", 3, 5, 7)
    case("reduce_to.row", [x], lambda x: x.sum((0, 1)), {"shape": [7]}, grads=[])
    case("reduce_to.column", [x], lambda x: x.sum((0, 2), keepdim=True)[0], {"shape": [5, 1]}, grads=[])
    case("reduce_to.middle", [x], lambda x: x.sum(1, keepdim=True), {"shape": [3, 1, 7]}, grads=[])
    case("reduce_to.outer", [x], lambda x: x.sum((0, 2), keepdim=True), {"shape": [1, 5, 1]}, grads=[])
    case("reduce_to.scalar", [x], torch.sum, {"shape": []}, grads=[])
    case("reduce_to.same", [x], lambda x: x, {"shape": [3, 5, 7]}, grads=[])
    case("reduce_to.tall", [normal("rt", 131, 3)], lambda x: x.sum(0), {"shape": [3]}, grads=[])
    case("reduce_to.nothing", [normal("rt", 0, 3)], lambda x: x.sum(0), {"shape": [3]}, grads=[])
    x = np.round(2 * normal("argmax", 4, 33))  # with ties: the first one
    first = lambda x, d: torch.from_numpy(np.argmax(x.numpy(), axis=d))
    for d in (0, 1):
        case(f"argmax.dim{d + 1}", [x], lambda x, d=d: first(x, d), {"dim": d + 1}, grads=[])
    case("argmax.last", [normal("al", 2, 3, 5)], lambda x: first(x, -1), {"dim": -1}, grads=[])
    for size_name, size in (("long", (3, 67)), ("one", (1,)), ("empty", (0, 3))):
        name = "sum_squares." + size_name
        case(name, [normal(name, *size)], lambda x: (x * x).sum())


# ---- norms and softmax over the last dimension ----


def norm_cases():
    def rms(eps):
        def f(x, w=None):
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
            return y if w is None else y * w

        return f

    def layer(eps):
        return lambda x, w, b=None: F.layer_norm(x, x.shape[-1:], w, b, eps)

    for shape_name, shape in {"cube": (2, 3, 67), "one": (1, 1), "short": (5, 3), "vector": (33,), "empty": (0, 8)}.items():
        n = shape[-1]
        name = f"rmsnorm.{shape_name}"
        x, w, b = normal(name, *shape), 1 + 0.2 * normal(name + "w", n), 0.3 * normal(name + "b", n)
        if n == 1:  # of one number only eps leaves a slope: x / sqrt(x^2 + eps)
            case(name, [x], rms(0.5), {"eps": 0.5})
            case(name + "_weight", [x, w], rms(0.5), {"eps": 0.5})
            continue
        case(name, [x], rms(1e-6))
        case(name + "_weight", [x, w], rms(1e-5), {"eps": 1e-5})
        name = f"layernorm.{shape_name}"
        case(name + "_weight", [x, w], layer(1e-5))
        case(name + "_bias", [x + 0.7, w, b], layer(1e-3), {"eps": 1e-3})
    case("rmsnorm.small_values", [1e-3 * normal("rs", 3, 16), normal("rsw", 16)], rms(1e-6))
    # A mean far larger than the spread: E[x^2] - E[x]^2 would lose all digits.
    case("layernorm.far_mean", [1000 + np.round(8 * normal("fm", 3, 16)), normal("fmw", 16)], layer(1e-5))
    for op, f in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        for shape_name, shape in {"long": (3, 67), "cube": (2, 3, 5), "one": (4, 1), "empty": (0, 5), "vector": (9,)}.items():
            name = f"{op}.{shape_name}"
            case(name, [2 * normal(name, *shape)], lambda x, f=f: f(x, -1))
        case(f"{op}.large", [1000 + 3 * normal(op + "l", 3, 9)], lambda x, f=f: f(x, -1))
    masked = normal("masked", 2, 5)
    masked[0, 2:] = masked[1, 0] = -np.inf
    case("softmax.masked", [masked], lambda x: torch.softmax(x, -1), grads=[])


# ---- rotary positions ----


def rope(x, positions, table=None, theta=10000.0, interleaved=False, dims=None, factor=1.0):
    if dims:
        turned = rope(x[..., :dims], positions, table, theta, interleaved, None, factor)
        return torch.cat((turned, x[..., dims:]), -1)
    frequency = theta ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    if table is not None:
        frequency = table.sum(0)
    a = positions.double()[..., None] * frequency  # (B, S, D/2) or (S, D/2)
    cos, sin = factor * torch.cos(a)[..., None, :], factor * torch.sin(a)[..., None, :]
    if interleaved:
        x1, x2 = x[..., 0::2], x[..., 1::2]
        return torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).flatten(-2)
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


def rope_cases():
    x = normal("rope", 2, 5, 3, 8)
    steps = torch.arange(5)
    case("rope.plain", [x], lambda x: rope(x, steps))
    case("rope.theta", [x], lambda x: rope(x, steps, theta=500.0), {"theta": 500})
    case("rope.interleaved", [x], lambda x: rope(x, steps, interleaved=True), {"interleaved": True})
    case("rope.offset", [x], lambda x: rope(x, steps + 7), {"offset": 7})
    case("rope.positions", [x, np.array([0, 1, 0, 1, 2])], rope)
    case("rope.batch_positions", [x, np.array([[0, 1, 2, 0, 1], [3, 9, 100, 0, 0]])], rope)
    case("rope.inverse", [x], lambda x: rope(x, -steps), {"inverse": True})
    y = normal("ropes", 1, 5, 1, 16)
    case("rope.wide", [normal("ropew", 1, 3, 2, 34)], lambda x: rope(x, torch.arange(3)))
    case("rope.two", [normal("rope2", 1, 4, 1, 2)], lambda x: rope(x, torch.arange(4)))
    case("rope.dims", [y], lambda x: rope(x, steps, dims=6), {"dims": 6})
    options = {"dims": 10, "factor": 1.25, "interleaved": True}
    case("rope.dims_interleaved", [y], lambda x: rope(x, steps, **options), options)
    table = uniform("ropet", 2, 4, low=-1) * np.array([[1], [1e-8]])
    case("rope.frequencies", [x, None, table], lambda x, p, t: rope(x, steps + 9000, t), {"offset": 9000}, grads=[1])
    case("rope.frequencies_all", [y, np.array([[3, 9, 100, 0, 0]]), table[:, :3]],
         lambda x, p, t: rope(x, p, t, dims=6, factor=0.5), {"dims": 6, "factor": 0.5}, grads=[1])
    case("rope.empty", [normal("rope0", 2, 0, 3, 8)], lambda x: rope(x, torch.arange(0)))


# ---- embedding ----


def embedding_cases():
    table, ids = normal("table", 11, 7), np.array([[3, 0, 10, 3, 3], [1, 10, 2, 0, 5]])
    case("embedding.plain", [table, ids], lambda t, i: t[i])
    case("embedding.scale", [table, ids], lambda t, i: 2.5 * t[i], {"scale": 2.5})
    case("embedding.vector", [table, ids[0]], lambda t, i: t[i])
    case("embedding.one", [normal("t1", 1, 1), np.zeros((1, 1), np.int32)], lambda t, i: t[i])
    case("embedding.wide", [normal("tw", 3, 65), np.array([2, 0, 2])], lambda t, i: t[i])
    case("embedding.empty", [table, np.zeros((2, 0), np.int32)], lambda t, i: t[i])
    dy = normal("edy", 2, 5, 7)
    add = lambda s: lambda g, i, d: g.index_add(0, i.reshape(-1), s * d.reshape(-1, d.shape[-1]))
    case("embedding_acc.plain", [table, ids, dy], None, after={1: add(1.0)})
    case("embedding_acc.scale", [table, ids, dy], None, {"scale": 0.5}, after={1: add(0.5)})


# ---- unembedding and cross-entropy ----


def cross_entropy(h, w, targets, mask=None, trans=True, z_loss=0.0, softcap=0.0, logit_scale=1.0, normalizer=0.0):
    logits = h.reshape(-1, h.shape[-1]) @ (w.mT if trans else w) * logit_scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    lse = torch.logsumexp(logits, -1)
    each = lse - logits.gather(-1, targets.reshape(-1, 1))[:, 0] + z_loss * lse**2
    keep = torch.ones_like(each) if mask is None else mask.reshape(-1).double()
    return (each * keep).sum() / (normalizer or keep.sum().clamp(min=1.0))


def loss_cases():
    def one(name, tokens=(2, 5), emb=7, vocab=67, masked=False, trans=True, **options):
        name = "cross_entropy." + name
        w = normal(name + "w", *((vocab, emb) if trans else (emb, vocab)))
        arrays = [normal(name + "h", *tokens, emb), w, rng(name + "t").integers(0, vocab, tokens)]
        if masked:
            arrays.append((rng(name + "m").uniform(size=tokens) < 0.6).astype(np.uint8))
        attrs = dict(options) if trans else dict(options, trans=False)
        case(name, arrays, lambda *t: cross_entropy(*t, trans=trans, **options), attrs)

    one("plain")
    one("flat", tokens=(13,))
    one("mask", masked=True)
    one("untied", trans=False)
    one("untied_mask", trans=False, masked=True)
    one("z_loss", z_loss=0.01)
    one("softcap", softcap=3.0)
    one("scale", logit_scale=0.2)
    one("normalizer", masked=True, normalizer=17.0)
    one("all", masked=True, z_loss=0.02, softcap=4.0, logit_scale=0.5)
    one("all_untied", masked=True, trans=False, z_loss=0.02, softcap=4.0, logit_scale=0.5)
    one("one", tokens=(1,), emb=1, vocab=2)
    one("long", tokens=(37,), emb=9, vocab=131)
    name = "cross_entropy.all_masked"
    arrays = [normal(name, 4, 3), normal(name + "w", 5, 3), np.array([0, 4, 1, 2]), np.zeros(4, np.uint8)]
    case(name, arrays, cross_entropy)


# ---- shape ----


def shape_cases():
    x = normal("shape", 2, 3, 4)
    case("reshape.flat", [x], lambda x: x.reshape(24), {"shape": [24]})
    case("reshape.guess", [x], lambda x: x.reshape(4, 6), {"shape": [4, -1]})
    case("reshape.ones", [x], lambda x: x.reshape(1, 6, 1, 4), {"shape": [1, 6, 1, 4]})
    case("reshape.empty", [normal("re", 0, 3)], lambda x: x.reshape(3, 0), {"shape": [3, 0]})
    for d in range(3):
        attrs = {"dim": d + 1, "start": 2, "length": x.shape[d] - 1}
        case(f"narrow.dim{d + 1}", [x], lambda x, d=d: x.narrow(d, 1, x.shape[d] - 1), attrs)
    case("narrow.last", [x], lambda x: x.narrow(-1, 0, 2), {"dim": -1, "start": 1, "length": 2})
    case("narrow.none", [x], lambda x: x.narrow(1, 0, 0), {"dim": 2, "start": 1, "length": 0})
    for d, shapes in enumerate((((2, 3), (1, 3), (4, 3)), ((3, 2), (3, 1), (3, 5)))):
        arrays = [normal(f"concat{d}{i}", *s) for i, s in enumerate(shapes)]
        case(f"concat.dim{d + 1}", arrays, lambda *t, d=d: torch.cat(t, d), {"dim": d + 1})
    case("concat.last", [normal("cl", 2, 3, 2), normal("cl2", 2, 3, 3)], lambda *t: torch.cat(t, -1), {"dim": -1})
    case("concat.one", [normal("c1", 2, 3)], lambda t: t.clone(), {"dim": 1})
    case("concat.with_empty", [normal("c0", 0, 3), normal("c2", 2, 3)], lambda *t: torch.cat(t, 0), {"dim": 1})
    case("permute.rotate", [x], lambda x: x.permute(2, 0, 1), {"dims": [3, 1, 2]})
    case("permute.heads", [normal("ph", 2, 3, 5, 4)], lambda x: x.permute(0, 2, 1, 3), {"dims": [1, 3, 2, 4]})
    case("permute.same", [x], lambda x: x.clone(), {"dims": [1, 2, 3]})
    case("permute.empty", [normal("pe", 2, 0, 3)], lambda x: x.permute(2, 1, 0), {"dims": [3, 2, 1]})
    case("transpose.matrix", [normal("tm", 5, 7)], lambda x: x.mT, {"dim1": 1, "dim2": 2})
    case("transpose.outer", [x], lambda x: x.transpose(0, 2), {"dim1": 1, "dim2": 3})
    case("transpose.large", [normal("tl", 33, 19)], lambda x: x.mT, {"dim1": 1, "dim2": 2})
    for d in range(2):
        index = rng(f"gather{d}").integers(0, (5, 7)[d], (4, 6))
        case(f"gather.dim{d + 1}", [normal("g", 5, 7), index], lambda x, i, d=d: x.gather(d, i), {"dim": d + 1})
    case("gather.last", [x, np.array([[[0], [3], [1]], [[2], [2], [0]]])], lambda x, i: x.gather(-1, i), {"dim": -1})
    for d in range(3):
        size = [2, 3, 4]
        size[d] -= 1
        attrs = {"dim": d + 1, "start": 2}
        write_in = lambda x, s, d=d: torch.cat((x.narrow(d, 0, 1), s), d)
        case(f"write_slice.dim{d + 1}", [x, normal(f"ws{d}", *size)], None, attrs, after={1: write_in})


# ---- attention ----


def attention(q, k, v, intervals=None, causal=False, window=0, chunk=0, prefix=0, softcap=0.0, scale=0.0, offset=0,
              kv_length=0):
    if kv_length:
        k, v = k[:, :kv_length], v[:, :kv_length]
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bshd,bthd->bhst", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(q.shape[1])[:, None] + offset
    j = torch.arange(k.shape[1])[None, :]
    seen = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen & ((j <= i) | (j < prefix))
    if window:
        seen = seen & ((i - j).abs() < window)
    if chunk:
        seen = seen & (i // chunk == j // chunk)
    if intervals is not None:
        seen = seen & (intervals[:, None, :, :1] <= j) & (j < intervals[:, None, :, 1:])
    # A query that sees no key gives zeros.
    some = seen.any(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(~seen & some, -torch.inf), -1) * some
    return torch.einsum("bhst,bthd->bshd", p, v)


def intervals_of(of_q, of_k):
    """The first key with the segment of each query, and the last + 1; 0, 0 without any."""
    def one(segment, keys):
        found = [j for j, key in enumerate(keys) if key == segment]
        return [found[0], found[-1] + 1] if found else [0, 0]

    return np.array([[one(segment, keys) for segment in row] for row, keys in zip(of_q, of_k)], np.int32)


def attention_cases():
    def one(name, b=2, s=7, t=None, h=2, k=None, d=6, intervals=None, **options):
        name = "attention." + name
        t, k = t or s, k or h
        arrays = [1.5 * normal(name + "q", b, s, h, d), normal(name + "k", b, t, k, d), normal(name + "v", b, t, k, d)]
        if intervals is not None:
            arrays.append(intervals)
        case(name, arrays, lambda *x: attention(*x, **options), options, grads=[1, 2, 3])

    one("plain")
    one("causal", causal=True)
    one("grouped", h=4, k=2)
    one("grouped_causal", h=6, k=2, causal=True)
    one("one_kv_head", k=1, causal=True)
    one("scale", scale=1.0)
    one("softcap", softcap=2.0)
    one("softcap_causal", softcap=2.0, causal=True, h=4, k=2)
    one("window", causal=True, window=3)
    one("window_one", causal=True, window=1)
    one("window_grouped", causal=True, window=4, h=4, k=2, s=11, b=1)
    documents = [[1, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 1, 1, 2]]
    one("documents", intervals=intervals_of(documents, documents), causal=True)
    one("documents_all", intervals=intervals_of(documents, documents))
    one("window_all", window=2)
    one("chunk", chunk=3, causal=True)
    one("chunk_all", chunk=3, s=4, t=8, offset=3, h=4, k=2)
    one("chunk_window", chunk=4, window=3, causal=True, s=11, b=1)
    one("prefix", prefix=4, causal=True)
    one("prefix_window", prefix=5, window=3, causal=True)
    # The third query of the first sequence sees no key at all.
    some, others = [[1, 1, 5], [2, 1, 2]], [[1, 1, 2, 2], [1, 2, 2, 2]]
    one("unseen", s=3, t=4, intervals=intervals_of(some, others))
    for name, of_q, of_k in (("documents", documents, documents), ("cross", some, others)):
        arrays = [np.array(of_q, np.int32), np.array(of_k, np.int32)]
        case("attention_intervals." + name, arrays, lambda *x: torch.tensor(intervals_of(*(t.tolist() for t in x))))
    one("unseen_window", s=6, t=3, window=2, causal=True)
    one("kv_length", kv_length=4)
    one("cache", s=3, t=9, offset=4, kv_length=7, causal=True)
    one("decode", s=1, t=9, offset=5, kv_length=6, causal=True, h=4, k=2)
    one("cross", s=3, t=8)
    one("odd_head", d=7, causal=True)
    one("one", b=1, s=1, h=1, d=1)
    one("long", b=1, s=71, h=2, k=1, d=8, causal=True)
    one("long_all", b=1, s=70, h=1, d=8)
    one("long_window", b=1, s=71, h=1, d=4, causal=True, window=20)


# ---- optimizers: optax adamw (decoupled decay of every parameter, bias correction) torch SGD, Lion by its paper ----


def adamw(p, g, m, v, lr, beta1, beta2, eps, eps_root, weight_decay, step, grad_scale=1.0):
    g = grad_scale * g
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return p - lr * (m_hat / (torch.sqrt(v_hat + eps_root) + eps) + weight_decay * p), m, v


def optimizer_cases():
    def one(name, copy=False, size=(3, 23), **options):
        base = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "eps_root": 0.0, "weight_decay": 0.1, "step": 1}
        base.update(options)
        name = "adamw." + name
        arrays = [normal(name + "p", *size), normal(name + "g", *size)]
        arrays += [0.1 * normal(name + "m", *size), 0.01 * uniform(name + "v", *size)]
        if base["step"] == 1:
            arrays[2:] = [np.zeros(size), np.zeros(size)]
        after = {
            1: lambda p, g, m, v, *c: adamw(p, g, m, v, **base)[0],
            3: lambda p, g, m, v, *c: adamw(p, g, m, v, **base)[1],
            4: lambda p, g, m, v, *c: adamw(p, g, m, v, **base)[2],
        }
        if copy:
            arrays.append(np.zeros(size))
            after[5] = after[1]
        case(name, arrays, None, base, after=after, dtypes={5: "bf16"} if copy else None)

    one("first")
    one("later", step=7, beta2=0.999, weight_decay=0.0)
    one("eps_root", step=3, eps_root=1e-3)
    one("scaled", step=2, grad_scale=0.25)
    one("copy", step=5, copy=True)
    one("empty", size=(0, 3))

    def descent(name, momentum=0.0, nesterov=False, weight_decay=0.0, lr=0.1, grad_scale=1.0):
        def update(p, g, b=None):
            g = grad_scale * g + weight_decay * p
            if b is None:
                return p - lr * g, None
            b = momentum * b + g
            return p - lr * (g + momentum * b if nesterov else b), b

        arrays = [normal(name + "p", 3, 23), normal(name + "g", 3, 23)]
        after = {1: lambda *x: update(*x)[0]}
        if momentum:
            arrays.append(normal(name + "b", 3, 23))
            after[3] = lambda *x: update(*x)[1]
        attrs = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        case("sgd." + name, arrays, None, dict(attrs, grad_scale=grad_scale), after=after)

    descent("plain")
    descent("decay", weight_decay=0.05, grad_scale=0.5)
    descent("momentum", momentum=0.9)
    descent("nesterov", momentum=0.9, nesterov=True)
    def lion(name, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, grad_scale=1.0):
        def update(p, g, m):
            g = grad_scale * g
            return p - lr * (torch.sign(beta1 * m + (1 - beta1) * g) + weight_decay * p), beta2 * m + (1 - beta2) * g

        arrays = [normal(name + letter, 3, 23) for letter in "pgm"]
        attrs = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "grad_scale": grad_scale}
        case("lion." + name, arrays, None, attrs, after={1: lambda *x: update(*x)[0], 3: lambda *x: update(*x)[1]})

    lion("lion")
    lion("lion_decay", weight_decay=0.3, grad_scale=0.5, beta1=0.5, beta2=0.8)
    case("fill.half", [normal("fill", 3, 23)], None, {"value": 0.5}, after={1: lambda x: torch.full_like(x, 0.5)})
    case("copy.same", [normal("copy1", 3, 23), normal("copy2", 3, 23)], None, after={1: lambda a, b: b})


def main():
    for make in (matmul_cases, elementwise_cases, cast_cases, reduce_cases, norm_cases, rope_cases, embedding_cases,
                 loss_cases, shape_cases, attention_cases, optimizer_cases):
        make()
    write("ops.h5")


if __name__ == "__main__":
    main()
