#!/usr/bin/env python3
"""Expected values and gradients of products, convolutions, pooling and norms over channels, by PyTorch on the CPU in
float64: writes ops_linear.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import torch

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


matmul_cases()
linear_gradient_cases()
einsum_cases()
write("ops_linear.h5")
