#!/usr/bin/env python3
"""NVFP4 by its published definition ("Pretraining Large Language Models with NVFP4", arxiv.org/abs/2509.25149), in the
order of operations that the documentation of Transformer Engine gives: writes nvfp4.h5 beside this file. Transformer
Engine itself needs a GPU, so this is a second implementation, in numpy, apart from the engine's.

    FORM.codes, .scales, .scale    of `x`, FORM one of FORMS: two codes a byte, block scales as numbers, the tensor's scale
    y, dx, dw, rotated.dw          products of px, pw and pdy whose operands are rounded to nearest; the last with the
                                   random Hadamard transform

    pip install ml_dtypes==0.6.0 numpy h5py
"""

import os

import h5py
import ml_dtypes
import numpy as np

F32, RUN = np.float32, 16
# form: scales by 16 x 16, along columns (of the transpose), after the transform
FORMS = {"rows": (False, False, False), "columns": (False, True, False), "square": (True, False, False),
         "square_columns": (True, True, False), "hadamard": (False, True, True)}
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])  # Transformer Engine's


def hadamard():
    """The orthogonal matrix: parity of the bits that row and column number share, and a sign for each row."""
    parity = np.array([[bin(i & j).count("1") % 2 for j in range(RUN)] for i in range(RUN)])
    return SIGNS[:, None] * (1 - 2 * parity) / 4


def bf16(x):
    return np.asarray(x, F32).astype(ml_dtypes.bfloat16).astype(F32)


def quantize(x, square, trans, transform):
    """Codes as numbers, block scales for each run of a line, and the scale."""
    lines = bf16(x).T if trans else bf16(x)
    if transform:
        lines = bf16(lines.astype(np.float64).reshape(-1, RUN) @ hadamard()).reshape(lines.shape)
    most = np.abs(lines).max()
    encode = min(F32(2688) / most, np.finfo(F32).max)
    runs = lines.reshape(lines.shape[0], -1, RUN)
    largest = np.abs(runs).max(2)
    if square:
        largest = largest.reshape(-1, RUN, largest.shape[1]).max(1).repeat(RUN, 0)
    scales = np.minimum(largest * F32(encode * F32(1 / 6)), F32(448)).astype(ml_dtypes.float8_e4m3fn).astype(F32)
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.minimum(F32(1) / (scales * F32(F32(1) / encode)), np.finfo(F32).max)
        near = np.clip(runs * factors[:, :, None], -6, 6)
    return near.astype(ml_dtypes.float4_e2m1fn).astype(F32).reshape(lines.shape), scales, F32(most / F32(2688))


def packed(codes):
    """Two a byte: the code is the bit pattern."""
    bits = codes.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return bits[:, ::2] | bits[:, 1::2] << 4


def lines_of(x, *form):
    codes, scales, scale = quantize(x, *form)
    return codes.astype(np.float64) * scales.repeat(RUN, 1) * np.float64(scale)


def main():
    rng = np.random.Generator(np.random.PCG64(40))
    x = (rng.standard_normal((48, 160)) * np.exp(rng.standard_normal((48, 160)))).astype(F32)
    x[4] = 0
    x[5] *= F32(2e-6)  # block scales of 0
    x[16:32, 32:48] *= F32(1e-3)  # denormal ones
    x[7, :16] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]  # ties
    x[8, 0] = x[8, 1] = np.abs(x).max() * 2
    out = {"x": x}
    for name, form in FORMS.items():
        codes, scales, scale = quantize(x, *form)
        out |= {f"{name}.codes": packed(codes), f"{name}.scales": scales, f"{name}.scale": np.array([scale])}
    px, pw, pdy = rng.standard_normal((48, 64)), rng.standard_normal((64, 80)), rng.standard_normal((48, 80))
    px, pw, pdy = (a.astype(F32) for a in (px, pw, pdy * np.exp(pdy)))
    out |= {"px": px, "pw": pw, "pdy": pdy}
    out["y"] = lines_of(px, False, False, False) @ lines_of(pw, True, True, False).T
    out["dx"] = lines_of(pdy, False, False, False) @ lines_of(pw, True, False, False).T
    for name, form in {"dw": FORMS["columns"], "rotated.dw": FORMS["hadamard"]}.items():
        out[name] = lines_of(px, *form) @ lines_of(pdy, *form).T
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvfp4.h5")
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for name in sorted(out):
            f.create_dataset(name, data=out[name] if out[name].dtype == np.uint8 else out[name].astype(F32),
                             track_times=False)
        f.attrs["about"] = np.bytes_(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")


main()
