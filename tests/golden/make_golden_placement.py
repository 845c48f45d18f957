"""Which sides of a TPU slice the axes of a mesh use, as jax.experimental.mesh_utils chooses them for mock devices.

placement.json is a list of cases: `hardware` (a name of configs/hardware), `sides` of the slice in chips, `split`
(allow_split_physical_axes), `ici`, the sizes of the axes data, fsdp, context and tensor, and `dcn`, those across slices.
The result is `refused`; or `ring`: JAX numbers the chips of this slice along a ring; or `parts`: of each axis, how many
chips it has along each side, and `strides`: how far apart they are. v7x has its two dies as the last side.
"""

import itertools
import json
import os
import random
from dataclasses import dataclass
from unittest import mock

import numpy as np
from jax._src import mesh_utils

KINDS = {"v5e": "TPU v5 lite", "v6e": "TPU v6 lite", "v5p": "TPU v5p", "v7x": "TPU7x"}


@dataclass(eq=False)
class Device:
    id: int
    device_kind: str
    coords: tuple
    core_on_chip: int
    slice_index: int
    platform: str = "tpu"
    process_index: int = 0


def devices(hardware, sides, slices):
    x, y, z = (*sides, 1)[:3]
    cores = 2 if hardware == "v7x" else 1
    places = [(s, a, b, c, d) for s in range(slices) for c in range(z) for b in range(y) for a in range(x)
              for d in range(cores)]
    return [Device(i, KINDS[hardware], (a, b, c), d, s) for i, (s, a, b, c, d) in enumerate(places)]


def place(hardware, sides, ici, dcn, split):
    case = {"hardware": hardware, "sides": sides, "ici": ici, "dcn": dcn, "split": split}
    rings = []
    handler = mesh_utils.device_kind_handler_dict[KINDS[hardware]]

    def spy(*args, **named):
        result = handler(*args, **named)
        rings.append(result is not None)
        return result

    slices = int(np.prod(dcn))
    with mock.patch.dict(mesh_utils.device_kind_handler_dict, {KINDS[hardware]: spy}):
        try:
            mesh = mesh_utils.create_hybrid_device_mesh(ici, dcn, devices(hardware, sides, slices),
                                                        allow_split_physical_axes=split)
        except NotImplementedError:
            return case | {"refused": True}
    if any(rings):
        return case | {"ring": True}
    n_sides = len(sides) + (hardware == "v7x")
    parts, strides = [], []
    for axis in range(len(ici)):
        at = [0] * len(ici)
        at[axis] = slice(0, ici[axis])
        line = mesh[tuple(at)]
        places = np.array([(*d.coords[:len(sides)], d.core_on_chip)[:n_sides] for d in line])
        distinct = [sorted(set(places[:, i])) for i in range(n_sides)]
        assert np.prod([len(d) for d in distinct]) == ici[axis]
        parts.append([len(d) for d in distinct])
        strides.append([int(d[1] - d[0]) if len(d) > 1 else 1 for d in distinct])
    return case | {"parts": parts, "strides": strides}


CASES = [
    # hardware, sides, ici, dcn, split
    ("v5e", [16, 16], [1, 16, 1, 16], [32, 1, 1, 1], False),  # the published 128B run
    ("v5e", [16, 16], [1, 256, 1, 1], [1, 1, 1, 1], False),
    ("v5e", [16, 16], [1, 4, 4, 16], [1, 1, 1, 1], False),
    ("v5e", [16, 16], [1, 4, 4, 16], [1, 1, 1, 1], True),
    ("v6e", [8, 16], [1, 8, 16, 1], [1, 1, 1, 1], False),
    ("v6e", [8, 8], [1, 32, 1, 2], [1, 1, 1, 1], False),
    ("v6e", [8, 8], [1, 32, 1, 2], [1, 1, 1, 1], True),
    ("v5p", [8, 8, 8], [1, 32, 1, 16], [2, 1, 1, 1], False),  # tensor = 16 has no place on 8x8x8
    ("v5p", [4, 8, 16], [1, 32, 1, 16], [2, 1, 1, 1], False),
    ("v5p", [8, 8, 8], [1, 32, 1, 16], [2, 1, 1, 1], True),
    ("v5p", [8, 8, 8], [1, 64, 1, 8], [1, 1, 1, 1], False),
    ("v5p", [4, 4, 8], [1, 8, 1, 16], [1, 1, 1, 1], False),
    ("v5p", [4, 4, 12], [1, 48, 1, 4], [1, 1, 1, 1], False),
    ("v5p", [16, 16, 24], [1, 24, 16, 16], [1, 1, 1, 1], False),
    ("v5p", [2, 4, 4], [1, 16, 1, 2], [1, 1, 1, 1], False),
    ("v7x", [4, 4, 4], [1, 64, 1, 2], [1, 1, 1, 1], False),  # tensor on the dies
    ("v7x", [4, 4, 4], [1, 16, 1, 8], [1, 1, 1, 1], False),
    ("v7x", [4, 4, 4], [1, 32, 4, 1], [1, 1, 1, 1], False),
    ("v7x", [2, 4, 4], [1, 16, 2, 2], [1, 1, 1, 1], False),  # the guide's FSDP16 + TP2 + CP2
    ("v7x", [4, 8, 8], [1, 32, 1, 16], [4, 1, 1, 1], True),
    ("v7x", [1, 1, 1], [1, 1, 1, 2], [1, 1, 1, 1], False),
    # Slices that JAX numbers along a ring, and some that it does not.
    ("v5e", [2, 2], [1, 2, 1, 2], [1, 1, 1, 1], False),
    ("v5e", [2, 4], [1, 2, 2, 2], [1, 1, 1, 1], False),
    ("v5e", [4, 4], [1, 4, 1, 4], [1, 1, 1, 1], False),
    ("v6e", [2, 4], [1, 4, 1, 2], [1, 1, 1, 1], False),
    ("v5p", [2, 2, 1], [1, 2, 1, 2], [1, 1, 1, 1], False),
    ("v5p", [2, 2, 2], [1, 4, 1, 2], [1, 1, 1, 1], False),
    ("v5p", [2, 2, 4], [1, 4, 1, 4], [1, 1, 1, 1], False),
    ("v7x", [2, 2, 1], [1, 4, 1, 2], [1, 1, 1, 1], False),
    ("v7x", [2, 2, 2], [1, 8, 1, 2], [1, 1, 1, 1], False),
    ("v7x", [2, 2, 4], [1, 4, 4, 2], [1, 1, 1, 1], False),
]
SHAPES = [("v5e", [16, 16]), ("v6e", [8, 16]), ("v5p", [4, 8, 8]), ("v5p", [8, 8, 12]), ("v5p", [4, 4, 4]),
          ("v7x", [4, 4, 8])]


def random_sizes(rng, chips):
    """Four sizes whose product is `chips`."""
    sizes, p = [1, 1, 1, 1], 2
    while chips > 1:
        if chips % p:
            p += 1
            continue
        sizes[rng.randrange(4)] *= p
        chips //= p
    return sizes


def main():
    rng, cases = random.Random(5), [place(h, s, i, d, split) for h, s, i, d, split in CASES]
    for (hardware, sides), _ in itertools.product(SHAPES, range(16)):
        sizes = random_sizes(rng, int(np.prod(sides)) * (2 if hardware == "v7x" else 1))
        cases += [place(hardware, sides, sizes, [1, 1, 1, 1], split) for split in (False, True)]
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), "placement.json")
    with open(name, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
