#!/usr/bin/env python3
"""numpy's files of arrays, in the folder numpy/ beside this file. tests/lua/test_storage.lua repeats the formulas.

    plain.npz, compressed.npz   one array for each type, byte order and order of indices
    f4.npy, f8.npy, i4.npy, scalar.npy, vector.npy   what mx.save_npy must write byte for byte
    object.npy, record.npy, text.npy, deep.npy   what must be refused

    pip install numpy==2.4.6
"""

import os

import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numpy")


def numbers(shape, kind):
    """0, 0.25, 0.5 ... less 3; integers: 0, 3, 6 ... less 20, or not less for unsigned ones."""
    index = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)
    if kind[-2] == "f":
        return (index * 0.25 - 3).astype(kind)
    return (index * 3 - (20 if kind[-2] == "i" else 0)).astype(kind)


def arrays():
    out = {}
    for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f4", ">f8", ">i4", ">u2"):
        out["big_" + kind[1:] if kind[0] == ">" else kind] = numbers((3, 4), kind)
    out["bool"] = numbers((3, 4), "i4") % 2 == 0
    out["fortran"] = np.asfortranarray(numbers((2, 3, 4), "f4"))
    out["fortran_f8"] = np.asfortranarray(numbers((4, 3), "f8"))
    out["scalar"] = np.float32(3)
    out["empty"] = np.zeros((0, 3), "f4")
    out["f2_special"] = np.array([np.nan, np.inf, -np.inf, 65504, 2**-24, -(2**-14)], "f2")
    out["large_i8"] = np.array([2**40, 1], "i8")
    return out


def main():
    os.makedirs(HERE, exist_ok=True)
    np.savez(os.path.join(HERE, "plain.npz"), **arrays())
    np.savez_compressed(os.path.join(HERE, "compressed.npz"), repeated=np.tile(numbers((1, 50), "f4"), (400, 1)),
                        **arrays())
    for name, array in {"f4": numbers((2, 3), "f4"), "f8": numbers((2, 3), "f8"), "i4": numbers((2, 3, 4), "i4"), "scalar": np.float32(1.5),
                        "vector": numbers(5, "u1"), "object": np.array([{"a": 1}], dtype=object),
                        "record": np.zeros(2, [("a", "f4"), ("b", "i4")]), "text": np.array(["ab"]),
                        "deep": np.zeros((1,) * 7, "f4")}.items():
        np.save(os.path.join(HERE, name + ".npy"), array)


if __name__ == "__main__":
    main()
