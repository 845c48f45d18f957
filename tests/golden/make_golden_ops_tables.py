#!/usr/bin/env python3
"""Expected values and gradients of embedding bags, linear systems, factorizations and determinants, by PyTorch on the
CPU in float64. Writes ops_tables.h5 beside this script:

    python3 make_golden_ops_tables.py

cases.py describes the file. Ids count from 0 on both sides.
"""

import numpy as np
import torch
import torch.nn.functional as F

from cases import case, normal, write


def bag_cases():
    def one(name, mode, rows, width, ids, offsets=None, weights=False):
        ids = np.asarray(ids, np.int32)
        starts = None if offsets is None else np.asarray(offsets, np.int32)
        w = normal(name + "/w", *ids.shape) if weights else None

        def f(table, ids, *rest):
            rest = [t for t in rest if t is not None]
            offsets = None if starts is None else rest.pop(0).long()
            return F.embedding_bag(ids.long(), table, offsets, mode=mode, per_sample_weights=rest[0] if rest else None)

        inputs = [normal(name, rows, width), ids, starts, w]
        while inputs[-1] is None:
            inputs.pop()
        case("embedding_bag." + name, inputs, f, {"mode": mode})

    rng = np.random.default_rng(5)
    table = rng.integers(0, 11, (5, 3))
    long_list = rng.integers(0, 11, 23)
    starts = [0, 4, 4, 9, 22, 23]  # an empty bag inside and one at the end
    for mode in ("sum", "mean", "max"):
        one(mode + "_table", mode, 11, 6, table)
        one(mode + "_offsets", mode, 11, 37, long_list, starts)
        one(mode + "_one", mode, 3, 1, [[2]])
        one(mode + "_same", mode, 4, 5, [[1, 1, 1], [3, 1, 3]])
    one("sum_weights", "sum", 11, 19, table, weights=True)
    one("sum_weights_offsets", "sum", 11, 8, long_list, starts, weights=True)


def solve_cases():
    def matrix(name, *shape):
        return normal(name, *shape) + 3 * np.eye(shape[-1])

    for name, a, b in (("plain", (4, 4), (4, 3)), ("vector", (5, 5), (5,)), ("batch", (2, 3, 3), (2, 3, 4)),
                       ("batch_vectors", (2, 2, 3, 3), (2, 2, 3)), ("one", (1, 1), (1, 1)), ("square", (3, 3), (3, 3))):
        for trans in (False, True):
            full = name + ("_trans" if trans else "")
            case("linalg_solve." + full, [matrix(full, *a), normal(full + "/b", *b)],
                 lambda x, y, t=trans: torch.linalg.solve(x.mT if t else x, y), {"trans": trans})


def cholesky_cases():
    for name, shape in (("plain", (4, 4)), ("batch", (3, 2, 2)), ("one", (1, 1)), ("larger", (2, 9, 9))):
        a = normal(name, *shape)
        a = a @ np.swapaxes(a, -1, -2) + 2 * np.eye(shape[-1])

        # PyTorch's gradient is symmetric: it takes a for any matrix with this symmetric part.
        case("linalg_cholesky." + name, [a], torch.linalg.cholesky)


def eigh(x):
    """Of the symmetric part, so that the gradient is symmetric; the greatest component of each vector is positive."""
    w, v = torch.linalg.eigh((x + x.mT) / 2)
    greatest = torch.gather(v, -2, v.abs().argmax(-2, keepdim=True))
    return w, v * greatest.sign()


def eigh_cases():
    for name, shape in (("plain", (4, 4)), ("batch", (3, 2, 2)), ("one", (1, 1)), ("larger", (2, 9, 9))):
        noise = 0.3 * normal(name, *shape)
        case("linalg_eigh." + name, [noise + np.swapaxes(noise, -1, -2) + np.diag(3.0 * np.arange(shape[-1]) - 5)], eigh)


def qr(x):
    """The diagonal of r is positive, as in Lua."""
    q, r = torch.linalg.qr(x)
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()
    return q * signs.unsqueeze(-2), r * signs.unsqueeze(-1)


def svd(x):
    """The greatest component of each row of vh is positive."""
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    signs = torch.gather(vh, -1, vh.abs().argmax(-1, keepdim=True)).sign()
    return u * signs.mT, s, vh * signs


def factor_cases():
    for name, shape in (("square", (4, 4)), ("tall", (7, 3)), ("batch", (2, 3, 5, 2)), ("one", (1, 1))):
        case("linalg_qr." + name, [normal("qr" + name, *shape)], qr)
    for name, shape in (("square", (4, 4)), ("tall", (7, 3)), ("wide", (3, 6)), ("batch", (2, 2, 5, 3)), ("one", (1, 1))):
        k = min(shape[-2:])
        u, _, vh = np.linalg.svd(normal("svd" + name, *shape), full_matrices=False)
        case("linalg_svd." + name, [u * (3.0 * k - 2 * np.arange(k)) @ vh], svd)  # values far apart
    for name, shape in (("plain", (4, 4)), ("batch", (5, 3, 3)), ("one", (1, 1)), ("larger", (2, 17, 17))):
        signs = np.where(normal("sign" + name, shape[-1], 1) > 0, 1, -1)  # of rows: determinants of both signs
        matrix = (normal("det" + name, *shape) + 3 * np.eye(shape[-1])) * signs
        case("linalg_slogdet." + name, [matrix], lambda x: tuple(torch.linalg.slogdet(x)))


bag_cases()
solve_cases()
cholesky_cases()
eigh_cases()
factor_cases()
write("ops_tables.h5")
