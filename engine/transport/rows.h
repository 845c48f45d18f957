/* Exchanges of rows: each member of a group sends each other one its own number of rows (MX_ALL_TO_ALL_ROWS).
 *
 * Rows are for experts, which the members have in parts of mx_part_size, in order. A tensor on the side of tokens has
 * its rows in the order of all experts. A tensor on the side of experts has the rows of its member's own experts, in
 * the order of the experts, and the rows of one expert in the order of the members that they come from. So the receiver
 * places what comes, and one table of counts, the same on all members, says where every row is. The rows of the result
 * behind the last one that comes are set to 0. Nothing is summed. */
#ifndef MX_TRANSPORT_ROWS_H
#define MX_TRANSPORT_ROWS_H

#include "transport/exchange.h"

struct mx_rows {
    int refs;
    int members, experts;
    int64_t width;   /* elements of a row */
    bool back;       /* from the experts to the tokens; else to the experts */
    int32_t count[]; /* (members, experts): how many rows of a member are for an expert; at least 0 */
};

/* With one reference, for the caller to fill in. MX_ERR_MEMORY. */
mx_status mx_rows_new(int members, int experts, mx_rows **out);
mx_rows *mx_rows_retain(mx_rows *rows); /* NULL is valid, also for release */
void mx_rows_release(mx_rows *rows);

/* The number of rows that member m has on either side. */
int64_t mx_rows_of_tokens(const mx_rows *rows, int m);
int64_t mx_rows_of_experts(const mx_rows *rows, int m);

/* Carries out an exchange whose `rows` is not NULL. The blocks of its streams are whole tensors. Collective among the
 * group. */
mx_status mx_rows_run(const mx_group *group, const mx_exchange *x);

#endif
