#include "transport/collective.h"

const char *mx_exchange_name(mx_exchange_kind kind)
{
    static const char *const names[MX_EXCHANGE_KINDS] = {
        [MX_ALL_REDUCE] = "all_reduce",
        [MX_ALL_GATHER] = "all_gather",
        [MX_REDUCE_SCATTER] = "reduce_scatter",
        [MX_ALL_TO_ALL] = "all_to_all",
        [MX_ALL_TO_ALL_ROWS] = "all_to_all_rows",
        [MX_PERMUTE] = "collective_permute",
        [MX_BROADCAST] = "broadcast",
        [MX_BARRIER] = "barrier",
        [MX_POINT] = "message",
    };
    return names[kind];
}

bool mx_collective_equal(const mx_collective *a, const mx_collective *b)
{
    return a->kind == b->kind && a->wire == b->wire && a->fold == b->fold && a->scale == b->scale &&
           a->root == b->root && a->shift == b->shift;
}
