/* What choosing and putting elements by index share. Not for other folders.
 *
 * The index is seen as (outer, n, inner) around dim. Element (o, j, i) of it belongs to the line of x through (o, i).
 * Lines of neighbours are read and written where they are. Other lines are turned over in strips of columns, so that
 * they become lines of neighbours in scratch memory: the first-level cache then has a line of x, while each element
 * of a column is in a cache line of its own. gather_from_copies (index.c) needs no turning. */
#ifndef MX_KERNELS_INDEX_INTERNAL_H
#define MX_KERNELS_INDEX_INTERNAL_H

#include "kernels/index.h"
#include "kernels/move.h"

typedef struct mx_index_job mx_index_job;

/* Some positions of a line, in the order of the index. */
typedef struct mx_index_line {
    const char *from; /* the line of x as it was; NULL: zeros */
    char *x;          /* the same line, read or written; may be `from` */
    const int32_t *index;
    char *y;
    int64_t n, limit; /* positions; elements of x */
    double *sums;     /* of the line; zeros at first and at last */
    bool first, last; /* positions of the line that are put */
    bool fills, puts; /* of extremes without x: chosen elements first become the least; then the extremes are put */
    bool stream;      /* x goes past the caches */
} mx_index_line;

struct mx_index_job {
    const mx_gather *g;
    int64_t outer, n, inner, step, limit; /* limit: elements of a line of x, `step` apart */
    int64_t run;                          /* so many columns are neighbours in x, too */
    char *x, *y;                          /* x: of the shape that the index counts in */
    const char *start;                    /* what x is before something is put there; NULL: 0 */
    int64_t bytes, y_bytes;               /* of an element */
    bool stream, large;
    /* false: the index is not as promised, and the line of x and the sums are undefined */
    bool (*line)(const mx_index_job *j, const mx_index_line *l);
    bool gathers;            /* x is only read, and y written */
    int64_t sums;            /* numbers in f64 for each element of a line of x: 0, 1 or 2 */
    mx_dtype dtype, y_dtype; /* of sums and extremes */
    bool afresh;             /* x does not count where the index names an element */
    mx_key_order order;      /* of extremes */
};

mx_index_job mx_index_job_of(const mx_gather *g, void *x, void *y, size_t element_bytes);
int64_t mx_index_outer_offset(const mx_index_job *j,
                              int64_t o); /* where the lines of block o of x begin, in elements */
int64_t mx_index_inner_offset(const mx_index_job *j, int64_t i); /* from there to column i */

/* Whether lines of x are neighbours, one for each o. */
static inline bool mx_index_has_lines(const mx_index_job *j) { return j->inner == 1 && j->step == 1; }

/* A strip: columns [from, from + width) of block o of the index. x: where they begin in x, in elements. */
typedef struct mx_index_strip {
    int64_t o, from, width, x;
} mx_index_strip;

/* Strips of up to `width` columns that are neighbours in x, too. */
int64_t mx_index_strips(const mx_index_job *j, int64_t width);
mx_index_strip mx_index_strip_of(const mx_index_job *j, int64_t width, int64_t i);

/* Calls j->line for each line by way of strips. *good: whether the index is as promised. MX_ERR_MEMORY without memory
 * for strips. */
mx_status mx_index_run_strips(const mx_index_job *j, bool *good);

#endif
