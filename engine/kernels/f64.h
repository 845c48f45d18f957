/* Arithmetic in f64, which is for checks: plain C for one element at a time, the same on every path. The drivers of the
 * families (elementwise.c, broadcast.c, reduce.c) call it where the output is f64 and share the work among threads. */
#ifndef MX_KERNELS_F64_H
#define MX_KERNELS_F64_H

#include "kernels/elementwise.h"

/* f(x), and f' from the output where mx_unary_reads_output, else from x. */
double mx_f64_value(mx_function f, double x);
double mx_f64_slope(mx_function f, double v);

/* a op b, and its derivative by a or by b (mx_binary_backward). */
double mx_f64_pair(mx_pair f, double a, double b);
double mx_f64_pair_slope(mx_pair f, bool by_b, double a, double b);
bool mx_f64_holds(mx_compare op, double a, double b);

#endif
