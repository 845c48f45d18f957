#!/usr/bin/env python3
"""Expected values and gradients of routing, of moving rows to experts and back, and of grouped products, by PyTorch on
the CPU in float64: writes ops_moe.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import numpy as np
import torch

from cases import case, normal, write
from golden import rng


def logits_of(name, *shape):
    """Logits of a token are at least 0.15 apart, so that rounding and small steps choose the same experts."""
    r, n = rng(name), shape[-1]
    rows = [r.permutation(n) * 0.2 - 0.1 * n + r.uniform(0, 0.05, n) for _ in range(int(np.prod(shape[:-1])))]
    return np.array(rows).reshape(shape)


# ---- moe_route ----


def group_mask(choice, groups, top_groups, sum_of_two):
    """The choice with -inf in place of the experts of all but the best groups."""
    by_group = choice.unflatten(-1, (groups, -1))
    size = by_group.shape[-1]
    score = by_group.topk(min(2, size) if sum_of_two else 1, -1)[0].sum(-1)
    best = torch.zeros_like(score).scatter(-1, score.topk(top_groups, -1)[1], 1.0)
    return torch.where(best.unsqueeze(-1) > 0, by_group, -torch.inf).flatten(-2)


def route(top, score="topk_softmax", normalize=False, scale=1.0, groups=1, top_groups=1, group_score="sum_of_two"):
    def f(logits, bias=None):
        if score == "sigmoid":
            scores = torch.sigmoid(logits)
        elif score == "softmax_topk":
            scores = torch.softmax(logits, -1)
        else:
            scores = logits
        choice = scores.detach() if bias is None else scores.detach() + bias.detach()
        if groups > 1:
            choice = group_mask(choice, groups, top_groups, group_score == "sum_of_two")
        chosen = choice.topk(top, -1)[1]
        weights = scores.gather(-1, chosen)
        if score == "topk_softmax":
            weights = torch.softmax(weights, -1)
        elif normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if score == "sigmoid" else 0.0))
        return weights * scale, chosen

    return f


def route_cases():
    def one(name, shape, bias=False, **attrs):
        arrays = [logits_of(name, *shape)]
        if bias:
            arrays.append(2.0 * (np.arange(shape[-1]) % 3 == 0))
        case("moe_route." + name, arrays, route(**attrs), attrs, grads=[1])

    one("mixtral", (7, 8), top=2)
    one("one_expert", (5, 1), top=1)
    one("all_experts", (5, 4), top=4)
    one("top1", (3, 2, 16), top=1)
    one("no_tokens", (0, 8), top=2)
    one("softmax", (9, 17), top=3, score="softmax_topk")
    one("softmax_scaled", (9, 16), top=6, score="softmax_topk", scale=2.5)
    one("softmax_normalized", (9, 128), top=8, score="softmax_topk", normalize=True)
    one("sigmoid", (6, 12), top=4, score="sigmoid")
    one("sigmoid_normalized", (6, 12), top=4, score="sigmoid", normalize=True, scale=2.5)
    one("sigmoid_bias", (2, 4, 16), bias=True, top=4, score="sigmoid", normalize=True)
    one("groups_bias", (3, 32), bias=True, top=4, score="sigmoid", normalize=True, groups=8, top_groups=4, scale=2.5)
    one("groups_max", (8, 32), top=6, score="softmax_topk", groups=8, top_groups=3, group_score="max", scale=16.0)


# ---- moe_sort and what follows from it ----


def sort_slots(experts, n, first=0, count=None, rows=None, capacity=0, sequences=1):
    """As three arrays, by a loop over slots."""
    flat, top = experts.reshape(-1), experts.shape[-1]
    count = n - first if count is None else count
    used = np.zeros((sequences, n), int)
    by_expert = [[] for _ in range(count)]
    run = len(flat) // sequences
    for slot, e in enumerate(flat):
        kept = capacity == 0 or used[slot // run, e] < capacity
        used[slot // run, e] += 1
        if kept and first <= e < first + count:
            by_expert[e - first].append(slot)
    order = [slot for slots in by_expert for slot in slots]
    place = np.full(len(flat), -1)
    place[order] = np.arange(len(order))
    rows = len(flat) if rows is None else rows
    order = np.array(order + [-1] * (rows - len(order)), int)
    assert top > 0
    return order, place.reshape(experts.shape), np.array([len(s) for s in by_expert])


def experts_of(name, tokens, n, top):
    r = rng(name)
    return np.array([r.permutation(n)[:top] for _ in range(tokens)], int).reshape(tokens, top)


LAYOUTS = {
    "plain": (11, 4, 2, {}),
    "one_choice": (9, 3, 1, {}),
    "local": (11, 6, 2, {"first": 2, "count": 3}),
    "local_rows": (11, 6, 2, {"first": 2, "count": 2, "rows": 16}),
    "capacity": (12, 4, 2, {"capacity": 2, "sequences": 3}),
    "no_tokens": (0, 4, 2, {}),
}


def layout(name):
    tokens, n, top, attrs = LAYOUTS[name]
    experts = experts_of("layout" + name, tokens, n, top)
    return experts, n, attrs, sort_slots(experts, n, **attrs)


def sort_cases():
    for name in LAYOUTS:
        experts, n, attrs, sorted_ = layout(name)
        case("moe_sort." + name, [experts], lambda e, s=sorted_: tuple(map(torch.from_numpy, s)),
             dict(attrs, experts=n), grads=[])
    experts = experts_of("count", 12, 5, 2)
    for name, sequences in (("all", 1), ("sequences", 3)):
        counts = np.array([[np.sum(run == e) for e in range(5)] for run in np.split(experts, sequences)], float)
        case("moe_count." + name, [experts], lambda e, c=counts: torch.from_numpy(c),
             {"experts": 5, "sequences": sequences}, grads=[])


def row_cases():
    def spread(x, order, place):
        rows = x[order.clamp(min=0) // place.shape[-1]]
        return torch.where((order >= 0).unsqueeze(-1), rows, 0.0)

    def combine(y, order, place, weights=None):
        found = torch.where((place >= 0).unsqueeze(-1), y[place.clamp(min=0)], 0.0)
        return (found if weights is None else found * weights.unsqueeze(-1)).sum(-2)

    for name in LAYOUTS:
        experts, _, _, (order, place, _) = layout(name)
        tokens, top = experts.shape
        for width in (7, 33):
            x = normal(f"gather{name}{width}", tokens, width)
            case(f"moe_gather.{name}{width}", [x, order, place], spread)
            y, w = normal(f"combine{name}{width}", len(order), width), normal(f"weights{name}{width}", tokens, top)
            if tokens:
                case(f"moe_combine.{name}{width}", [y, order, place, w], combine)
            case(f"moe_combine.sum_{name}{width}", [y, order, place], combine)


# ---- grouped products ----


def grouped_cases():
    def products(counts, trans_b):
        def f(x, w, _, bias=None):
            row, parts = 0, []
            for g, n in enumerate(counts):
                parts.append(x[row:row + n] @ (w[g].mT if trans_b else w[g]) + (0 if bias is None else bias[g]))
                row += n
            parts.append(0.0 * parts[0].sum() + x.new_zeros(x.shape[0] - row, parts[0].shape[1]))
            return torch.cat(parts)

        return f

    def sums(counts):
        def f(a, b, _):
            row, parts = 0, []
            for n in counts:
                parts.append(a[row:row + n].mT @ b[row:row + n])
                row += n
            return torch.stack(parts)

        return f

    def column_sums(counts):
        def f(x, _):
            bounds = np.cumsum((0,) + counts)
            return torch.stack([x[first:last].sum(0) for first, last in zip(bounds, bounds[1:])])

        return f

    for name, counts, rows, k, n in (
        ("plain", (3, 5, 2), 10, 7, 5),
        ("empty_group", (4, 0, 9, 1), 14, 17, 19),
        ("unused_rows", (3, 2), 9, 8, 6),
        ("all_in_one", (0, 12, 0), 12, 33, 16),
        ("no_rows", (0, 0), 0, 5, 3),
        ("many_rows", (40, 24), 64, 24, 40),
    ):
        c = np.array(counts)
        for trans in (False, True):
            w = (len(counts), n, k) if trans else (len(counts), k, n)
            suffix = "_trans_b" if trans else ""
            case(f"grouped_matmul.{name}{suffix}", [normal(name + "x", rows, k), normal(name + "w", *w), c],
                 products(counts, trans), {"trans_b": True} if trans else {})
        case(f"grouped_matmul.{name}_bias", [normal(name + "bx", rows, k), normal(name + "bw", len(counts), k, n), c,
                                             normal(name + "bias", len(counts), n)], products(counts, False))
        case(f"grouped_column_sum.{name}", [normal(name + "cs", rows, n), c], column_sums(counts))
        a, b = normal(name + "a", rows, k), normal(name + "b", rows, n)
        case(f"grouped_matmul_grad.{name}", [a, b, c], sums(counts))
        case(f"grouped_matmul_acc.{name}", [normal(name + "sum", len(counts), k, n), a, b, c], None,
             after={1: lambda s, a, b, _, counts=counts: s + sums(counts)(a, b, None)})


def main():
    route_cases()
    sort_cases()
    row_cases()
    grouped_cases()
    write("ops_moe.h5")


if __name__ == "__main__":
    main()
