#!/usr/bin/env python3
"""What ml_dtypes makes of f32 and bf16 as float8_e4m3fn, float8_e5m2 and their fnuz forms: writes float8.h5
beside this file.

    e4m3.values   (256) f32: the value of each code, and of the other formats likewise
    e4m3.bf16     (256) i32: of the bf16 whose upper byte is i, the CRC-32 of the 256 codes
    e4m3.f32      (256) i32: of f32 whose upper byte is i, the CRC-32 of 2^16 codes: of each upper half one number, whose
                  lower byte is a hash of the rest (samples below)
    e4m3.edges    (128, 6) u8: codes of the f32 of edges() below

    pip install ml_dtypes==0.6.0 numpy==2.4.6 h5py==3.16.0
"""

import os
import zlib

import h5py
import ml_dtypes
import numpy as np

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
           "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz}


def samples(upper):
    """f32 bits whose upper byte is `upper`: 2^16 of them."""
    word = np.uint32(upper << 16) + np.arange(1 << 16, dtype=np.uint32)
    return word << np.uint32(8) | (word * np.uint32(2654435761)) >> np.uint32(24)


def codes(values, dtype):
    return values.astype(dtype).view(np.uint8)


def crc(values, dtype):
    return np.uint32(zlib.crc32(codes(values, dtype).tobytes())).view(np.int32)


def edges(values):
    """(128, 6) f32: around each value that is not negative, and around the middle between it and the next one."""
    finite = values[:128][np.isfinite(values[:128])].astype(np.float64)
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    out = np.zeros((128, 6), np.float32)
    for column, points in enumerate([finite, (finite + following) / 2]):
        bits = points.astype(np.float32).view(np.int32)
        for k in range(3):
            out[:len(finite), 3 * column + k] = np.maximum(bits + k - 1, 0).view(np.float32)
    return out


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "float8.h5")
    with np.errstate(all="ignore"), h5py.File(path, "w") as file:
        bf16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)
        for name, dtype in FORMATS.items():
            values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
            file[name + ".values"] = values
            file[name + ".bf16"] = np.array([crc(row, dtype) for row in bf16])
            file[name + ".f32"] = np.array([crc(samples(i).view(np.float32), dtype) for i in range(256)])
            file[name + ".edges"] = codes(edges(values), dtype)


if __name__ == "__main__":
    main()
