"""What the golden-file generators share: deterministic inputs and the HDF5 layouts.

Every value was computed in float64 and rounded once to f32; integers are i32, masks u8. The same code and versions give the
same bytes.
"""

import json
import zlib

import h5py
import numpy as np
import torch

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


def rng(name):
    """A generator that depends on the name alone: a new case changes no other one."""
    return np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))


def store(value):
    """An array as it is kept in the file: f32, i32 or u8."""
    a = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if a.dtype in (np.uint8, np.bool_):
        return a.astype(np.uint8)
    if np.issubdtype(a.dtype, np.integer):
        return a.astype(np.int32)
    return a.astype(np.float32)


def to_torch(a):
    """What torch computes with: float64, int64 or bool of exactly the stored values."""
    if a.dtype == np.uint8:
        return torch.from_numpy(a.astype(bool))
    if np.issubdtype(a.dtype, np.integer):
        return torch.from_numpy(a.astype(np.int64))
    return torch.from_numpy(a.astype(np.float64))


def create(f, name, a):
    """Compression needs chunks; their index outweighs what a small array saves."""
    packed = {"compression": "gzip", "compression_opts": 9, "shuffle": True} if a.nbytes > 8192 else {}
    f.create_dataset(name, data=a, track_times=False, **packed)


def write_named(path, datasets, about):
    """A dataset for each name, and the JSON text of `about` as the root attribute `about`."""
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for name in sorted(datasets):
            create(f, name, store(datasets[name]))
        f.attrs["about"] = np.bytes_(json.dumps(dict(about, made_with=made_with()), sort_keys=True))


def write_packed(path, datasets, cases):
    """For thousands of tiny arrays: one dataset a dtype, of all values end to end, and `index`, the bytes of a JSON text.

    {"cases": [...], "arrays": {NAME: [dtype, first element counted from 1, [sizes]]}, "made_with": "..."}
    """
    parts, at, arrays = {"f32": [], "i32": [], "u8": []}, {"f32": 1, "i32": 1, "u8": 1}, {}
    for name in sorted(datasets):
        a = store(datasets[name])
        dtype = {"f": "f32", "i": "i32", "u": "u8"}[a.dtype.kind]
        arrays[name] = [dtype, at[dtype], list(a.shape)]
        parts[dtype].append(a.ravel())
        at[dtype] += a.size
    index = {"cases": cases, "arrays": arrays, "made_with": made_with()}
    text = json.dumps(index, separators=(",", ":"), sort_keys=True).encode()
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for dtype, values in ((d, v) for d, v in parts.items() if v):
            create(f, dtype, np.concatenate(values))
        create(f, "index", np.frombuffer(text, np.uint8))


def made_with():
    return f"torch {torch.__version__.split('+')[0]}, numpy {np.__version__}, h5py {h5py.__version__}"
