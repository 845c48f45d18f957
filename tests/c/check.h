/* The smallest test harness: CHECK counts and reports, check_done prints the closing line. */
#ifndef MX_TESTS_CHECK_H
#define MX_TESTS_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int checks_passed, checks_failed;

/* Counts one check; on failure prints where and the message (printf style). */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            checks_passed++;                                                                                           \
        } else {                                                                                                       \
            checks_failed++;                                                                                           \
            printf("FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition);                                                \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

static inline int check_done(void)
{
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
