#include "kernels/context.h"

#include "kernels/move_loops.h"

static void transpose(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows, int64_t columns,
                      size_t element_bytes, bool stream)
{
    int64_t bytes = (int64_t)element_bytes;
    (void)stream;
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++)
            memcpy((char *)to + (c * to_stride + r) * bytes, (const char *)from + (r * from_stride + c) * bytes,
                   element_bytes);
}

const mx_move_paths mx_moves_portable = {
    .transpose = transpose,
    .runs = runs_plain,
    .gather = gather_plain,
    .gather_rows = gather_rows_plain,
    .within = within_plain,
    .add = add_plain,
    .add_sums = add_sums_plain,
    .put_means = put_means_plain,
    .keys = keys_plain,
    .values = values_plain,
};
