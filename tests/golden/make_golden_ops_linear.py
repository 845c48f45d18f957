#!/usr/bin/env python3
"""Expected values and gradients of products, convolutions and pooling, by PyTorch on the CPU in float64: writes
ops_linear.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import torch
from torch.nn import functional as F

from cases import case, normal, write

# ---- matmul with broadcast leading dimensions and with vectors ----


def matmul_cases():
    def one(name, a, b, trans_a=False, trans_b=False, bias=None):
        def f(a, b, bias=None):
            c = torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)
            return c if bias is None else c + bias

        arrays = [normal(name + "a", *a), normal(name + "b", *b)]
        if bias:
            arrays.append(normal(name + "bias", bias))
        attrs = {k: True for k, v in (("trans_a", trans_a), ("trans_b", trans_b)) if v}
        case("matmul." + name, arrays, f, attrs)

    one("broadcast_b", (3, 4, 5), (1, 5, 2))
    one("broadcast_a", (1, 4, 5), (3, 5, 2))
    one("broadcast_outer", (2, 1, 4, 5), (3, 5, 2))
    one("broadcast_both", (2, 1, 4, 5), (1, 3, 5, 2))
    one("broadcast_middle", (2, 3, 1, 4, 5), (2, 1, 3, 5, 2))
    one("broadcast_trans_a", (2, 1, 5, 4), (3, 5, 2), trans_a=True)
    one("broadcast_trans_b", (2, 1, 4, 5), (3, 2, 5), trans_b=True)
    one("broadcast_trans_both", (2, 1, 5, 4), (3, 2, 5), trans_a=True, trans_b=True)
    one("broadcast_bias", (3, 4, 5), (1, 5, 2), bias=2)
    one("ones", (1, 1, 4, 5), (5, 2))
    one("shared_a", (4, 5), (2, 3, 5, 2))
    one("matrix_vector", (4, 5), (5,))
    one("matrix_vector_trans_a", (5, 4), (5,), trans_a=True)
    one("batch_vector", (2, 3, 4, 5), (5,))
    one("vector_matrix", (5,), (5, 3))
    one("vector_matrix_trans_b", (5,), (3, 5), trans_b=True)
    one("vector_batch", (5,), (2, 5, 3))
    one("vector_vector", (7,), (7,))
    one("vector_of_one", (3, 1), (1,))
    one("broadcast_empty_batch", (0, 4, 5), (1, 5, 2))
    one("broadcast_no_inner", (2, 4, 0), (1, 0, 2))
    one("no_vector", (3, 0), (0,))


def einsum_cases():
    def one(name, equation, *shapes):
        arrays = [normal(f"einsum{name}{i}", *s) for i, s in enumerate(shapes)]
        case("einsum." + name, arrays, lambda *t: torch.einsum(equation, *t), {"equation": equation})

    one("product", "ij,jk->ik", (3, 4), (4, 5))
    one("trans_b", "ij,kj->ik", (3, 4), (5, 4))
    one("trans_a", "ji,jk->ik", (4, 3), (4, 5))
    one("exchanged", "ij,jk->ki", (3, 4), (4, 5))
    one("implicit", "ij,jk", (3, 4), (4, 5))
    one("implicit_order", "ba", (3, 4))
    one("spaces", " ij , jk -> ik ", (3, 4), (4, 5))
    one("attention", "bqhd,bkhd->bhqk", (2, 3, 2, 5), (2, 4, 2, 5))
    one("values", "bhqk,bkhd->bqhd", (2, 2, 3, 4), (2, 4, 2, 5))
    one("outer", "i,j->ij", (3,), (4,))
    one("elementwise", "ij,ij->ij", (3, 4), (3, 4))
    one("inner", "i,i->", (5,), (5,))
    one("all", "ij->", (3, 4))
    one("columns", "ij->j", (3, 4))
    one("trace", "ii", (4, 4))
    one("diagonal", "ii->i", (4, 4))
    one("diagonal_batch", "bii->bi", (2, 3, 3))
    one("diagonal_first", "iji->ji", (3, 2, 3))
    one("diagonal_twice", "iii->i", (3, 3, 3))
    one("diagonal_product", "ii,ij->j", (3, 3), (3, 4))
    one("permuted", "ijk->kij", (2, 3, 4))
    one("ellipsis", "...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2))
    one("ellipsis_swapped", "...ij->...ji", (2, 3, 4))
    one("ellipsis_implicit", "...i,ij", (2, 3, 4), (4, 5))
    one("ellipsis_summed", "...i->i", (2, 3, 4))
    one("ellipsis_in_one", "...,i->...i", (2, 3), (4,))
    one("bilinear", "bi,oij,bj->bo", (3, 4), (2, 4, 5), (3, 5))
    one("chain", "ij,jk,kl,l->i", (2, 3), (3, 4), (4, 5), (5,))
    one("size_one", "ij,jk->ik", (3, 1), (4, 5))
    one("size_one_free", "ij,ik->ijk", (1, 4), (3, 5))
    one("summed_alone", "ij,k->k", (3, 4), (5,))
    one("scalar", ",ij->ij", (), (3, 4))
    one("empty", "ij,jk->ik", (3, 0), (0, 4))
    one("empty_batch", "bij,bjk->bik", (0, 3, 4), (0, 4, 2))
    one("batch_last", "ijb,jkb->ikb", (3, 4, 2), (4, 5, 2))


# ---- gradients that can be differentiated again: those of linear operations ----


def linear_gradient_cases():
    def reduce_to(shape):
        def f(x):
            lead = x.dim() - len(shape)
            for d in range(x.dim() - 1, -1, -1):
                if d < lead:
                    x = x.sum(d)
                elif shape[d - lead] != x.shape[d]:
                    x = x.sum(d, keepdim=True)
            return x

        return f

    for name, a, b in (("lead", (2, 3, 5), (5,)), ("inner", (2, 3, 5), (2, 1, 5)), ("both", (2, 3, 5), (3, 1)),
                       ("all", (4, 5), ()), ("same", (3, 4), (3, 4)), ("empty", (0, 3), (3,))):
        case("reduce_to.gradient_" + name, [normal("reduce_to" + name, *a)], reduce_to(b), {"shape": list(b)})
    for name, shape in (("matrix", (3, 5)), ("scalar", ()), ("empty", (0, 2))):
        arrays = [normal("straight" + name, *shape), normal("through" + name, *shape)]
        case("straight_through." + name, arrays, lambda value, x: value.detach() + x - x.detach(), grads=[2])


# ---- convolutions ----


def conv_cases():
    def one(op, name, x, w, bias=True, **options):
        attrs = dict(options)
        causal = options.get("padding") == "causal"

        def f(x, w, b=None):
            o = dict(options)
            if causal:
                o.pop("padding")
                dilation = o.get("dilation", 1)
                for d in range(w.dim() - 2):
                    before = (w.shape[-1 - d] - 1) * (dilation if isinstance(dilation, int) else dilation[-1 - d])
                    x = F.pad(x, [0, 0] * d + [before, 0])
            return (F.conv1d if op == "conv1d" else F.conv2d)(x, w, b, **o)

        arrays = [normal(op + name + "x", *x), normal(op + name + "w", *w)]
        if bias:
            arrays.append(normal(op + name + "b", w[0]))
        case(f"{op}.{name}", arrays, f, attrs)

    one("conv2d", "plain", (2, 3, 7, 6), (4, 3, 3, 3))
    one("conv2d", "no_bias", (2, 3, 7, 6), (4, 3, 3, 3), bias=False)
    one("conv2d", "padding", (2, 3, 5, 7), (5, 3, 3, 3), padding=1)
    one("conv2d", "stride", (2, 3, 9, 8), (5, 3, 3, 3), stride=2, padding=1)
    one("conv2d", "uneven", (1, 3, 9, 11), (4, 3, 2, 5), stride=[2, 3], padding=[1, 2])
    one("conv2d", "dilation", (2, 3, 9, 10), (4, 3, 3, 2), dilation=[2, 3], padding=2)
    one("conv2d", "groups", (2, 6, 5, 5), (8, 3, 3, 3), groups=2, padding=1)
    one("conv2d", "depthwise", (2, 5, 7, 6), (5, 1, 3, 3), groups=5, padding=1)
    one("conv2d", "depthwise_stride", (2, 3, 8, 9), (6, 1, 3, 3), groups=3, padding=1, stride=2)
    one("conv2d", "thin", (2, 2, 6, 7), (3, 2, 2, 3), dilation=2, padding=[1, 2])
    one("conv2d", "pointwise", (2, 6, 5, 7), (4, 6, 1, 1))
    one("conv2d", "pointwise_large", (2, 6, 24, 25), (4, 6, 1, 1), bias=False)
    one("conv2d", "pointwise_stride", (2, 6, 5, 7), (4, 6, 1, 1), stride=2, bias=False)
    one("conv2d", "same", (1, 3, 6, 7), (4, 3, 3, 5), padding="same")
    one("conv2d", "same_even", (1, 3, 6, 7), (4, 3, 2, 4), padding="same", dilation=2)
    one("conv2d", "whole", (2, 3, 4, 5), (5, 3, 4, 5))
    one("conv2d", "far_padding", (1, 3, 2, 2), (4, 3, 2, 2), padding=4, stride=3)
    one("conv2d", "many_images", (9, 3, 3, 3), (4, 3, 2, 2))
    one("conv2d", "large", (2, 3, 26, 23), (4, 3, 3, 3), padding=1)
    one("conv2d", "ones", (1, 1, 1, 1), (1, 1, 1, 1))
    one("conv2d", "no_images", (0, 3, 4, 4), (4, 3, 3, 3))
    one("conv1d", "plain", (2, 3, 9), (5, 3, 4))
    one("conv1d", "stride", (2, 4, 11), (6, 2, 3), stride=2, padding=1, groups=2)
    one("conv1d", "dilation", (2, 3, 11), (4, 3, 3), dilation=3, bias=False)
    one("conv1d", "same", (2, 3, 8), (4, 3, 4), padding="same")
    one("conv1d", "causal", (2, 3, 8), (4, 3, 4), padding="causal")
    one("conv1d", "causal_dilation", (2, 3, 8), (4, 3, 3), padding="causal", dilation=2)
    one("conv1d", "causal_depthwise", (2, 5, 9), (5, 1, 4), padding="causal", groups=5)
    one("conv1d", "depthwise_long", (1, 3, 70), (3, 1, 4), padding=3, groups=3, bias=False)
    for name, shape in (("images", (2, 3, 5, 7)), ("matrix", (4, 3)), ("long", (2, 2, 70)), ("empty", (0, 3, 2))):
        dims = [d for d in range(len(shape)) if d != 1]
        case("channel_sum." + name, [normal("channels" + name, *shape)], lambda x: x.sum(dims))


def pool_cases():
    def one(op, name, x, size, **options):
        f = {"max_pool1d": F.max_pool1d, "max_pool2d": F.max_pool2d, "avg_pool1d": F.avg_pool1d,
             "avg_pool2d": F.avg_pool2d}[op]
        case(f"{op}.{name}", [normal(op + name, *x)], lambda t: f(t, size, **options), dict(options, size=size))

    for op in ("max_pool", "avg_pool"):
        one(op + "2d", "plain", (2, 3, 8, 6), 2)
        one(op + "2d", "overlapping", (2, 3, 9, 7), 3, stride=2, padding=1)
        one(op + "2d", "uneven", (1, 2, 9, 8), [2, 3], stride=[3, 1], padding=[1, 0])
        one(op + "2d", "whole", (2, 3, 4, 5), [4, 5])
        one(op + "2d", "rest", (1, 2, 7, 5), 2)
        one(op + "2d", "one", (1, 1, 1, 1), 1)
        one(op + "2d", "no_images", (0, 3, 4, 4), 2)
        one(op + "1d", "plain", (2, 3, 9), 2)
        one(op + "1d", "overlapping", (2, 3, 9), 4, stride=1, padding=2)


matmul_cases()
pool_cases()
conv_cases()
linear_gradient_cases()
einsum_cases()
write("ops_linear.h5")
