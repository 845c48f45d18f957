#!/usr/bin/env python3
"""What Qwix makes of f32 in int8 and the 8-bit floats, and of products and their gradients, and Flax under delayed
scaling: writes quantize.h5 beside this file.

    NAME.by.codes, NAME.by.scale   the codes of `x` as numbers, NAME one of DTYPES, by "row" or "column"
    RECIPE.y, .dx, .dw             the product of px and pw, and its gradient for pdy
    fixed.y, .dx, .dw              the same under fp8_full with fixed ranges of 1.5 for px and 0.75 for pw
    mxfp8.rounded                  mxfp8.x in MXFP8, by mxfp8() below
    RECIPE.gy, .gdx, .gdw          the same of a grouped product of gx and gw with `counts` and gdy
    fp8_gpu.y, .dx, .dw, .scales   the same product after two others by factors STEPS, and the scales of x, w and dy;
                                   fp8_nanoo likewise

    pip install qwix==0.1.8 flax==0.12.12 jax==0.12.0.1 ml_dtypes==0.6.0 numpy h5py
"""

import json
import os

import h5py
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import qwix
from flax import linen
from qwix._src.core import dot_general_qt, qarray, ragged_dot_qt

DTYPES = {"i8": jnp.int8, "e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2,
          "e4m3fnuz": jnp.float8_e4m3fnuz, "e5m2fnuz": jnp.float8_e5m2fnuz}
RECIPES = {"int8": ("i8", "i8"), "fp8": ("e4m3", "e4m3"), "fp8_full": ("e4m3", "e5m2")}

def mxfp8(rng):
    """Runs of 32 that share the least power of two not below their largest magnitude / 448, by frexp."""
    x = (rng.standard_normal((16, 64)) * np.exp(3 * rng.standard_normal((16, 1)))).astype(np.float32)
    x[2] = 0
    x[3, 5], x[3, 40] = 448, 448.25  # just a scale of 1, and just one of 2
    x[4] *= np.float32(1e-30)
    runs = x.reshape(32, 32)
    fraction, exponent = np.frexp(np.abs(runs).max(1) * np.float32(1 / 448))
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)
    scale = np.ldexp(np.float32(1), exponent)[:, None]
    values = (runs / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    return {"mxfp8.x": x, "mxfp8.rounded": values.reshape(x.shape)}


DELAYED = {"fp8_gpu": linen.fp8_ops.Fp8DirectDotGeneralOp, "fp8_nanoo": linen.fp8_ops.NANOOFp8DotGeneralOp}
STEPS = (1.0, 3.0, 0.5)  # x, w and dy of a step are these times the arrays


def delayed(op, x, w, dy):
    """The last of the steps: y, dx, dw, and the scales of x, w and dy that it used."""
    module, numbers = op(), (((2,), (0,)), ((), ()))
    state = module.init(jax.random.PRNGKey(0), x, w, numbers)
    for factor in STEPS:
        y, vjp = jax.vjp(lambda state, a, b: module.apply(state, a, b, numbers), state, x * factor, w * factor)
        state, dx, dw = vjp(jnp.asarray(dy * factor))
    kept = state["_overwrite_with_gradient"]
    scales = [kept[name][0] for name in ("input_scale", "kernel_scale", "output_grad_scale")]
    return {"y": y, "dx": dx, "dw": dw, "scales": np.array(scales, np.float32)}


def main():
    rng = np.random.Generator(np.random.PCG64(20))
    x = (rng.standard_normal((13, 40)) * np.exp(3 * rng.standard_normal((13, 40)))).astype(np.float32)
    x[4] = 0
    x[5] *= np.float32(1e-21)  # a scale so small becomes 1
    x[:, 7] = 0
    out = {"x": x}
    for name, dtype in DTYPES.items():
        for by, axis in (("row", 0), ("column", 1)):
            q = qarray.quantize(x, qarray.HowToQuantize(qtype=dtype, channelwise_axes=(axis,)))
            out[f"{name}.{by}.codes"] = q.qvalue.astype(jnp.float32)
            out[f"{name}.{by}.scale"] = q.scale
    px, pw = rng.standard_normal((3, 8, 24)), rng.standard_normal((24, 10))
    pdy = rng.standard_normal((3, 8, 10)) * np.exp(rng.standard_normal((3, 8, 10)))
    px, pw, pdy = (a.astype(np.float32) for a in (px, pw, pdy))
    out |= {"px": px, "pw": pw, "pdy": pdy}
    for name, (forward, backward) in RECIPES.items():
        config = dot_general_qt.DotGeneralQtConfig(
            lhs_qtype=DTYPES[forward], rhs_qtype=DTYPES[forward], dlhs_grad_qtype=DTYPES[backward],
            drhs_grad_qtype=DTYPES[backward])
        y, vjp = jax.vjp(lambda a, b: dot_general_qt.dot_general_qt(a, b, (((2,), (0,)), ((), ())), config), px, pw)
        out[f"{name}.y"] = y
        out[f"{name}.dx"], out[f"{name}.dw"] = vjp(jnp.asarray(pdy))
    config = dot_general_qt.DotGeneralQtConfig(
        lhs_qtype=DTYPES["e4m3"], rhs_qtype=DTYPES["e4m3"], dlhs_grad_qtype=DTYPES["e5m2"],
        drhs_grad_qtype=DTYPES["e5m2"], lhs_calibration_method="fixed,-1.5,1.5", rhs_calibration_method="fixed,0.75")
    y, vjp = jax.vjp(lambda a, b: dot_general_qt.dot_general_qt(a, b, (((2,), (0,)), ((), ())), config), px, pw)
    out["fixed.y"], (out["fixed.dx"], out["fixed.dw"]) = y, vjp(jnp.asarray(pdy))
    for name, op in DELAYED.items():
        out |= {f"{name}.{key}": value for key, value in delayed(op, px, pw, pdy).items()}
    out |= mxfp8(np.random.Generator(np.random.PCG64(22)))
    rng = np.random.Generator(np.random.PCG64(21))
    counts = np.array([5, 0, 4, 2], np.int32)
    gx, gw = rng.standard_normal((11, 24)), rng.standard_normal((4, 24, 10))
    gdy = rng.standard_normal((11, 10)) * np.exp(rng.standard_normal((11, 10)))
    gx, gw, gdy = (a.astype(np.float32) for a in (gx, gw, gdy))
    out |= {"gx": gx, "gw": gw, "gdy": gdy, "counts": counts}
    for name, (forward, backward) in RECIPES.items():
        config = ragged_dot_qt.RaggedDotQtConfig(
            lhs_qtype=DTYPES[forward], rhs_qtype=DTYPES[forward], dlhs_grad_qtype=DTYPES[backward],
            drhs_grad_qtype=DTYPES[backward])
        y, vjp = jax.vjp(lambda a, b: ragged_dot_qt.ragged_dot_qt(a, b, counts, config, None, jnp.float32), gx, gw)
        out[f"{name}.gy"] = y
        out[f"{name}.gdx"], out[f"{name}.gdw"] = vjp(jnp.asarray(gdy))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quantize.h5")
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for name in sorted(out):
            f.create_dataset(name, data=np.asarray(out[name], np.float32), track_times=False)
        f.attrs["about"] = np.bytes_(json.dumps({"made_with": f"qwix {qwix.__version__}, jax {jax.__version__}"}))


main()
