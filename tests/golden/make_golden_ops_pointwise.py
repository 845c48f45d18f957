#!/usr/bin/env python3
"""Expected values and gradients of pointwise operations, losses and attention with a bias, by PyTorch on the CPU in
float64: writes ops_pointwise.h5 beside this file. Run as make_golden_ops.py; cases.py says what a case is."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from cases import case, normal, uniform, write
from golden import rng

SHAPES = {"vector": (67,), "matrix": (3, 37), "one": (1,), "scalar": (), "empty": (0, 3)}


def unary_cases():
    functions = {
        "erf": (torch.erf, -3, 3),
        "log1p": (torch.log1p, -0.9, 5),
        "expm1": (torch.expm1, -3, 3),
        "softplus": (F.softplus, -8, 8),
        "elu": (F.elu, -3, 3),
        "leaky_relu": (F.leaky_relu, -3, 3),
        "floor": (torch.floor, -5, 5),
        "ceil": (torch.ceil, -5, 5),
        "sign": (torch.sign, -2, 2),
        "tan": (torch.tan, -1.4, 1.4),
        "asin": (torch.asin, -0.9, 0.9),
        "acos": (torch.acos, -0.9, 0.9),
        "atan": (torch.atan, -5, 5),
        "sinh": (torch.sinh, -3, 3),
        "cosh": (torch.cosh, -3, 3),
        "asinh": (torch.asinh, -9, 9),
        "acosh": (torch.acosh, 1.1, 9),
        "atanh": (torch.atanh, -0.9, 0.9),
        "erfinv": (torch.erfinv, -0.8, 0.8),
        "lgamma": (torch.lgamma, 0.2, 9),
        "digamma": (torch.digamma, 0.5, 9),
    }
    for op, (f, low, high) in functions.items():
        for name, shape in SHAPES.items():
            case(f"{op}.{name}", [uniform(op + name, *shape, low=low, high=high)], f)
    small = np.array([1e-7, -1e-7, 3e-4, -3e-4, 0.02, -0.02, 0.3])
    case("log1p.small", [small], torch.log1p)
    case("expm1.small", [small], torch.expm1)
    case("erf.small", [small], torch.erf)
    case("erf.far", [np.array([-30.0, -5, -2, -0.75, 0.75, 2, 5, 30])], torch.erf)
    case("softplus.far", [np.array([-90.0, -30, -12, 0, 12, 30, 90, 1000])], F.softplus)
    case("expm1.far", [np.array([-100.0, -20, -0.35, -0.34, 0.34, 0.35, 20, 60])], torch.expm1)
    for op, f in (("asin", torch.asin), ("acos", torch.acos)):
        case(f"{op}.edges", [np.array([-1.0, -0.75, -0.5, 0, 0.5, 0.75, 1])], f, grads=[])
        case(f"{op}.beyond", [np.array([-1.5, 1.0625, np.inf, np.nan])], f, grads=[])
    case("asin.small", [small], torch.asin)
    case("sinh.small", [small], torch.sinh)
    case("atan.far", [np.array([-1e30, -100, -1.25, -1, 1, 1.25, 100, 1e30])], torch.atan)
    case("atan.endless", [np.array([-np.inf, np.inf, np.nan])], torch.atan, grads=[])
    case("sinh.far", [np.array([-80.0, -20, -1.25, -1, 1, 1.25, 20])], torch.sinh)
    case("cosh.far", [np.array([-80.0, -20, -1.25, 0, 1.25, 20])], torch.cosh)
    case("asinh.small", [small], torch.asinh)
    case("atanh.small", [small], torch.atanh)
    case("asinh.far", [np.array([-1e38, -1e9, -1e4, 1e4, 2e9, 3e38])], torch.asinh)
    case("acosh.far", [np.array([1 + 2.0**-23, 1.0625, 1e4, 2e9, 3e38])], torch.acosh)
    case("asinh.endless", [np.array([-np.inf, np.inf, np.nan])], torch.asinh, grads=[])
    case("acosh.edges", [np.array([1.0, 0.9375, 0, -1, -1e9, np.inf, -np.inf, np.nan])], torch.acosh, grads=[])
    case("atanh.edges", [np.array([1.0, -1, 1.5, -1e9, 0.9999999, np.inf, np.nan])], torch.atanh, grads=[])
    case("erfinv.small", [small], torch.erfinv)
    case("erfinv.edges", [np.array([1.0, -1, 1.5, -1e9, 0.9999999, -0.99999, np.inf, np.nan])], torch.erfinv, grads=[])
    case("lgamma.large", [np.array([1e-6, -1e-3, 1.0, 2, 40, 1e4, 1e9, 1e30])], torch.lgamma, grads=[])
    case("lgamma.negative", [np.array([-0.5, -1.25, -2.75, -10.5])], torch.lgamma)
    case("lgamma.edges", [np.array([0.0, -1, -2, np.inf, -np.inf, np.nan])], torch.lgamma, grads=[])
    case("digamma.large", [np.array([1e-6, 40, 1e4, 1e9, 1e30])], torch.digamma, grads=[])
    case("digamma.negative", [np.array([-0.5, -1.25, -2.75, -10.5])], torch.digamma)
    case("digamma.edges", [np.array([0.0, -1, -2, np.inf, -np.inf, np.nan])], torch.digamma, grads=[])
    for n in (0, 1, 2, 5):
        for name, shape in SHAPES.items():
            x = uniform(f"polygamma{n}{name}", *shape, low=0.5, high=9)
            case(f"polygamma.{name}_{n}", [x], lambda x, n=n: torch.polygamma(n, x), {"n": n})
    case("polygamma.negative", [np.array([-0.5, -1.25, -2.75])], lambda x: torch.polygamma(1, x), {"n": 1}, grads=[])
    case("tan.far", [np.array([-1000.0, -100, 10, 3000, 20000])], torch.tan)
    halves = np.arange(-9, 10) / 2.0
    for op, f in (("round", torch.round), ("floor", torch.floor), ("ceil", torch.ceil), ("sign", torch.sign)):
        case(f"{op}.halves", [halves], f)
    case("round.empty", [normal("round", 0)], torch.round)
    case("softplus.beta", [normal("beta", 5, 7)], lambda x: F.softplus(x, beta=2.5), {"beta": 2.5})
    case("elu.alpha", [normal("alpha", 5, 7)], lambda x: F.elu(x, alpha=0.3), {"alpha": 0.3})
    case("leaky_relu.slope", [normal("slope", 5, 7)], lambda x: F.leaky_relu(x, 0.2), {"negative_slope": 0.2})
    for name, limits in (("both", {"min": -0.5, "max": 0.75}), ("min", {"min": 0.25}), ("max", {"max": -0.25})):
        case(f"clamp.{name}", [normal(name, 5, 13)], lambda x, limits=limits: torch.clamp(x, **limits), limits)
    case("clamp.ints", [np.arange(-9, 9, dtype=np.int32)], lambda x: torch.clamp(x, -3, 5), {"min": -3, "max": 5})
    case("clamp.empty", [normal("clamp", 0)], lambda x: torch.clamp(x, 0), {"min": 0})
    odd = np.array([1.0, np.nan, -np.inf, np.inf, 0, -3])
    case("isnan.odd", [odd], torch.isnan, grads=[])
    case("isfinite.odd", [odd], torch.isfinite, grads=[])
    case("isnan.long", [normal("isnan", 3, 67)], torch.isnan, grads=[])
    case("isfinite.long", [normal("isfinite", 3, 67)], torch.isfinite, grads=[])


PAIRS = {
    "same": ((3, 37), (3, 37)),
    "row": ((2, 3, 5), (5,)),
    "column": ((3, 5), (3, 1)),
    "outer": ((2, 1, 5), (1, 3, 1)),
    "scalar_right": ((3, 7), ()),
    "scalar_left": ((), (3, 7)),
    "empty": ((0, 5), (5,)),
}


def pair_cases():
    for name, (a, b) in PAIRS.items():
        case(f"power.{name}", [uniform("pa" + name, *a, low=0.2, high=3), uniform("pb" + name, *b, low=-2, high=3)],
             torch.pow)
        case(f"lerp.{name}", [normal("la" + name, *a), normal("lb" + name, *b)],
             lambda x, y: torch.lerp(x, y, 0.3), {"weight": 0.3})
        sides = [np.sign(normal(f"side{i}{name}", *s)) for i, s in enumerate((a, b))]
        case(f"atan2.{name}", [uniform("ta" + name, *a, low=0.5, high=3) * sides[0],
                               uniform("tb" + name, *b, low=0.1, high=3) * sides[1]], torch.atan2)
        case(f"remainder.{name}", [uniform("ra" + name, *a, low=-9, high=9),
                                   uniform("rb" + name, *b, low=0.5, high=3) * sides[1]], torch.remainder)
        case(f"fmod.{name}", [uniform("fa" + name, *a, low=-9, high=9),
                              uniform("fb" + name, *b, low=0.5, high=3) * sides[1]], torch.fmod)
        mask = (normal("mask" + name, *b) > 0).astype(np.uint8)
        case(f"masked_fill.{name}", [normal("ma" + name, *a), mask],
             lambda x, m: torch.where(m.bool(), torch.tensor(-2.5, dtype=x.dtype), x), {"value": -2.5})
        for op, f in (("mul", torch.mul), ("add", torch.add)):
            case(f"{op}.mask_{name}", [mask, normal(op + name, *a)], f)
    edges = np.array([0.0, 1, -1, np.inf, -np.inf, np.nan])
    case("atan2.edges", [np.repeat(edges, 6), np.tile(edges, 6)], torch.atan2, grads=[])
    case("atan2.minus_zero", [np.array([0.0, -0.0, 0.0, -0.0]), np.array([0.0, 0.0, -0.0, -0.0])], torch.atan2, grads=[])
    case("remainder.edges", [np.array([7.0, -7, 7, -7, 6, -6, 1e30, 5, -5, 0]),
                             np.array([4.0, 4, -4, -4, 3, 3, 7, 1e30, 7e-7, 2])], torch.remainder, grads=[])
    case("remainder.zero", [np.array([1.0, 0, np.inf, np.nan, 1]), np.array([0.0, 0, 2, 2, np.nan])], torch.remainder,
         grads=[])
    case("fmod.edges", [np.array([7.0, -7, 7, -7, 6, -6, 1e30, 5, -5, 0]),
                        np.array([4.0, 4, -4, -4, 3, 3, 7, 1e30, 7e-7, 2])], torch.fmod, grads=[])
    case("fmod.zero", [np.array([1.0, 0, np.inf, np.nan, 1, 2]), np.array([0.0, 0, 2, 2, np.nan, np.inf])], torch.fmod,
         grads=[])
    case("power.negative", [np.array([-2.0, -1.5, -3, 2]), np.array([3.0, 2, -2, 0])], torch.pow, grads=[1])
    for op, f in (("add_", torch.add), ("sub_", torch.sub), ("mul_", torch.mul), ("div_", torch.div)):
        for name in ("same", "row", "scalar_right", "empty"):
            a, b = PAIRS[name]
            y = normal(op + "b" + name, *b)
            case(f"{op}.{name}", [normal(op + "a" + name, *a), np.sign(y) * (0.5 + np.abs(y))], None, after={1: f})
    case("add_.alpha", [normal("aa", 3, 37), normal("ab", 3, 37)], None, {"alpha": -0.3},
         after={1: lambda c, x: torch.add(c, x, alpha=-0.3)})


def bit_cases():
    """Computed in int64, of which the low bits are kept."""
    whole = {"i32": (torch.int32, -(2**31), 2**31, 32), "u8": (torch.uint8, 0, 256, 8), "i8": (torch.int8, -128, 128, 8)}
    for name, (dtype, low, high, bits) in whole.items():

        def ints(of, *shape, low=low, high=high):
            return rng(of).integers(low, high, shape)

        def one(op, arrays, f, dtype=dtype, name=name):
            case(op, arrays, lambda *x: f(*x).to(dtype).to(torch.int64), dtypes={i + 1: name for i in range(len(arrays))})

        a, b, row = ints("a" + name, 3, 37), ints("b" + name, 3, 37), ints("r" + name, 37)
        for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            one(f"{op}.{name}", [a, b], getattr(torch, op))
            one(f"{op}.{name}_row", [a, row], getattr(torch, op))
            one(f"{op}.{name}_scalar", [a, ints("s" + name)], getattr(torch, op))
        one(f"bitwise_not.{name}", [a], torch.bitwise_not)
        counts = ints("counts" + name, 3, 37, low=0, high=bits)
        one(f"shift_left.{name}", [a, counts], torch.bitwise_left_shift)
        one(f"shift_right.{name}", [a, counts], torch.bitwise_right_shift)
        one(f"shift_right.{name}_scalar", [a, np.array(3)], torch.bitwise_right_shift)
    case("bitwise_and.empty", [np.zeros((0, 3), np.int32), np.zeros(3, np.int32)], torch.bitwise_and)


def loss_cases():
    for reduction in ("mean", "sum", "none"):
        attrs = {"reduction": reduction}
        for shape_name, shape in (("matrix", (5, 37)), ("one", (1,)), ("scalar", ())):
            name = f"{shape_name}_{reduction}"
            x, t = 2 * normal("x" + name, *shape), normal("t" + name, *shape)
            case(f"mse_loss.{name}", [x, t], lambda a, b: F.mse_loss(a, b, reduction=reduction), attrs)
            case(f"l1_loss.{name}", [x, t], lambda a, b: F.l1_loss(a, b, reduction=reduction), attrs)
            case(f"huber_loss.{name}", [x, t], lambda a, b: F.huber_loss(a, b, reduction=reduction, delta=0.7),
                 {**attrs, "delta": 0.7})
            target = uniform("p" + name, *shape, low=0.05, high=0.95)
            case(f"bce_with_logits.{name}", [x, target],
                 lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=reduction), attrs)
            logp = np.log(uniform("q" + name, *shape, low=0.05, high=0.95))
            case(f"kl_div.{name}", [logp, target], lambda a, b: F.kl_div(a, b, reduction=reduction), attrs)
            case(f"kl_div.log_{name}", [logp, np.log(target)],
                 lambda a, b: F.kl_div(a, b, reduction=reduction, log_target=True), {**attrs, "log_target": True})
        if reduction == "sum":
            log_p, p = np.log(uniform("batch q", 5, 37, low=0.05)), uniform("batch p", 5, 37, low=0.05)
            case("kl_div.batchmean", [log_p, p], lambda a, b: F.kl_div(a, b, reduction="batchmean"),
                 {"reduction": "batchmean"})
        labels = (normal("labels", 5, 37) > 0).astype(np.uint8)
        case(f"bce_with_logits.u8_{reduction}", [3 * normal("bx", 5, 37), labels],
             lambda a, b: F.binary_cross_entropy_with_logits(a, b.to(a.dtype), reduction=reduction), attrs)
        case(f"kl_div.zeros_{reduction}", [np.log(np.array([0.2, 0.3, 0.5])), np.array([0.0, 1.0, 0.0])],
             lambda a, b: F.kl_div(a, b, reduction=reduction), attrs, grads=[1])

        for shape_name, rows, classes in (("rows", (7,), 37), ("batch", (2, 3), 131), ("one", (1,), 1), ("row", (), 17)):
            for kind in ("plain", "ignore", "smooth", "weight", "all"):
                if shape_name == "one" and kind in ("ignore", "all"):
                    continue
                name = f"softmax_cross_entropy.{shape_name}_{kind}_{reduction}"
                targets = rng(name).integers(0, classes, rows).astype(np.int32)
                options = {"reduction": reduction}
                if kind in ("ignore", "all") and targets.ndim > 0:
                    targets.reshape(-1)[::3] = 2
                    options["ignore_index"] = 2
                if kind in ("smooth", "all"):
                    options["label_smoothing"] = 0.15
                inputs = [2 * normal(name, *rows, classes), targets]
                if kind in ("weight", "all"):
                    inputs.append(uniform(name + "w", classes, low=0.2, high=2))

                def loss(x, t, w=None, options=options):
                    flat = F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1).long(), weight=w, **options)
                    return flat.reshape(t.shape) if options["reduction"] == "none" else flat

                case(name, inputs, loss, options, grads=[1])


def attention_cases():
    def one(name, q, k, bias=None, heads=None, slopes=None, causal=False, scale=None, softcap=0.0, window=0,
            sinks=False):
        """q (B, S, H, D), k (B, T, K, D)."""
        b, s, h, _ = q
        t, kv = k[1], k[2]

        def f(q, k, v, intervals, bias, slopes=None, sinks=None):
            k, v = (x.repeat_interleave(h // kv, 2) for x in (k, v))
            scores = torch.einsum("bshd,bthd->bhst", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            i, j = torch.arange(s)[:, None], torch.arange(t)[None]
            if slopes is not None:
                scores = scores - slopes[:, None, None] * (i - j).abs()
            seen = torch.ones(s, t, dtype=torch.bool)
            if causal:
                seen = seen & (j <= i)
            if window:
                seen = seen & ((i - j).abs() < window)
            if bias is not None and bias.is_floating_point():
                scores = scores + bias
            elif bias is not None:
                seen = seen & bias.bool()
            seen = seen.expand(scores.shape)
            scores = scores.masked_fill(~seen, -torch.inf)
            if sinks is not None:  # one more score, which takes its share of the probability
                scores = torch.cat((scores, sinks[None, :, None, None].expand(b, h, s, 1)), -1)
                p = torch.softmax(scores, -1)[..., :-1]
            else:
                p = torch.where(seen.any(-1, keepdim=True), torch.softmax(scores, -1), 0.0)
            return torch.einsum("bhst,bthd->bshd", p, v)

        inputs = [normal(name + x, *shape) for x, shape in (("q", q), ("k", k), ("v", k))] + [None]
        grads = [1, 2, 3]
        if bias == "mask":
            mask = (normal(name + "m", *heads) > -0.3).astype(np.uint8)
            mask[..., 0] = 1
            inputs.append(mask)
        elif bias:
            inputs.append(normal(name + "b", *heads))
            grads.append(5)
        else:
            inputs.append(None)
        if slopes:
            inputs.append(2.0 ** -np.arange(1, h + 1))
        if sinks:
            inputs += [None] * (6 - len(inputs)) + [2 * normal(name + "s", h)]
            grads.append(7)
        attrs = {"causal": True} if causal else {}
        attrs.update({key: x for key, x in (("scale", scale), ("softcap", softcap), ("window", window)) if x})
        case("attention." + name, inputs, f, attrs, grads=grads)

    small, keys = (2, 7, 4, 5), (2, 9, 2, 5)
    one("bias_full", small, keys, bias=True, heads=(2, 4, 7, 9))
    one("bias_heads", small, keys, bias=True, heads=(4, 7, 9))
    one("bias_batch", small, keys, bias=True, heads=(2, 1, 7, 9))
    one("bias_shared", small, keys, bias=True, heads=(7, 9), scale=0.7)
    one("bias_keys", small, keys, bias=True, heads=(2, 1, 1, 9))
    one("bias_causal", (2, 21, 2, 8), (2, 21, 1, 8), bias=True, heads=(1, 2, 21, 21), causal=True)
    one("bias_window", (1, 33, 2, 8), (1, 33, 2, 8), bias=True, heads=(1, 1, 33, 33), causal=True, window=7)
    one("bias_long", (1, 67, 2, 16), (1, 131, 1, 16), bias=True, heads=(1, 2, 67, 131))
    one("mask_full", small, keys, bias="mask", heads=(2, 4, 7, 9))
    one("mask_keys", small, keys, bias="mask", heads=(2, 1, 1, 9))
    one("mask_causal", (1, 40, 2, 8), (1, 40, 2, 8), bias="mask", heads=(40, 40), causal=True)
    one("mask_softcap", small, keys, bias="mask", heads=(7, 9), softcap=2.0)
    one("slopes", small, keys, slopes=True)
    one("slopes_causal", (1, 70, 4, 8), (1, 70, 2, 8), slopes=True, causal=True)
    one("slopes_bias", (1, 12, 4, 8), (1, 12, 2, 8), slopes=True, bias=True, heads=(12, 12), causal=True)
    one("sinks", small, keys, sinks=True)
    one("sinks_causal", (1, 70, 4, 8), (1, 70, 2, 8), sinks=True, causal=True)
    one("sinks_window", (2, 37, 4, 16), (2, 37, 2, 16), sinks=True, causal=True, window=5)
    one("sinks_unseen", (1, 9, 2, 4), (1, 3, 1, 4), sinks=True, causal=True, window=2, softcap=2.0)
    one("sinks_decode", (2, 1, 4, 8), (2, 40, 2, 8), sinks=True)
    one("sinks_bias", (1, 12, 4, 8), (1, 12, 2, 8), sinks=True, bias=True, heads=(12, 12), slopes=True, causal=True)
    one("bias_one", (1, 1, 1, 1), (1, 1, 1, 1), bias=True, heads=(1, 1, 1, 1))
    one("bias_empty", (1, 0, 2, 4), (1, 3, 1, 4), bias=True, heads=(2, 0, 3))


unary_cases()
pair_cases()
bit_cases()
loss_cases()
attention_cases()
write("ops_pointwise.h5")
