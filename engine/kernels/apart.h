/* How far the scratch memory of threads is apart. */
#ifndef MX_KERNELS_APART_H
#define MX_KERNELS_APART_H

/* Bytes. What a thread goes through in order is prefetched beyond its end, and the lines there would be taken from the
 * thread that writes them: sums by an index were half as fast on two threads side by side (Zen 5). */
enum { MX_APART = 4096 };

#endif
