#!/usr/bin/env python3
"""Expected values and gradients of norms over channels, by PyTorch on the CPU in float64: writes ops_norms.h5 beside
this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

from torch.nn import functional as F

from cases import case, normal, uniform, write


def arrays_of(name, shape, n):
    return [normal(name + str(i), *s) for i, s in enumerate((shape, shape[1:2], shape[1:2]))][:n]


def batch_cases():
    def one(name, shape, n=3, eps=1e-5):
        def f(x, w=None, b=None):
            dims = [d for d in range(x.dim()) if d != 1]
            return F.batch_norm(x, None, None, w, b, True, eps=eps), x.mean(dims), x.var(dims, correction=0)

        case("batch_norm." + name, arrays_of("batch" + name, shape, n), f, {"eps": eps})

    def fixed(name, shape):
        def f(x, w, b, mean, var):
            each = [-1 if d == 1 else 1 for d in range(x.dim())]
            y = (x - mean.view(each)) / (var + 1e-5).sqrt().view(each)
            return (y if w is None else y * w.view(each) + b.view(each)), mean * 1, var * 1

        channels = shape[1]
        arrays = arrays_of("fixed" + name, shape, 3)
        if name == "fixed_alone":
            arrays[1:] = [None, None]
        arrays += [normal("fixedmean" + name, channels), uniform("fixedvar" + name, channels, low=0.5, high=2.0)]
        case("batch_norm." + name, arrays, f)

    one("images", (3, 4, 5, 2))
    one("matrix", (7, 3))
    one("line", (2, 5, 9))
    one("alone", (4, 3, 5), 1)
    one("weight", (4, 3, 5), 2)
    one("planes", (2, 3, 7, 5))
    one("long_planes", (3, 2, 131))
    one("columns", (5, 130, 9), eps=1e-2)
    one("one_channel", (9, 1, 3))
    one("one_image", (1, 3, 37))
    one("one_element_planes", (70, 17, 1, 1))
    one("volumes", (2, 3, 3, 2, 4))
    fixed("fixed", (2, 3, 7, 5))
    fixed("fixed_short", (3, 5, 4))
    fixed("fixed_alone", (2, 3, 6))


def group_cases():
    def one(name, shape, groups, n=3):
        case("group_norm." + name, arrays_of("group" + name, shape, n),
             lambda x, w=None, b=None: F.group_norm(x, groups, w, b), {"groups": groups})

    one("two", (3, 4, 5, 2), 2)
    one("one", (2, 6, 7), 1)
    one("each", (2, 3, 4, 4), 3)
    one("planes", (2, 6, 7, 5), 3)
    one("long_planes", (1, 4, 131), 2)
    one("columns", (3, 140, 4), 1)
    one("matrix", (5, 12), 4)
    one("many_images", (131, 2, 3), 1)
    one("alone", (2, 4, 33), 2, 1)
    one("weight", (2, 4, 3), 2, 2)
    one("no_images", (0, 4, 3), 2)
    one("volumes", (2, 4, 3, 2, 2), 4)


batch_cases()
group_cases()
write("ops_norms.h5")
