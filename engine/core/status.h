/* Status: how engine functions report failures.
 *
 * Every engine function that can fail returns an mx_status and stores one message for the calling thread. Only bind/
 * turns it into a Lua error. A message names what was given, what was expected and what to do. */
#ifndef MX_CORE_STATUS_H
#define MX_CORE_STATUS_H

#include <stddef.h>

typedef enum mx_status {
    MX_OK = 0,
    MX_ERR_SHAPE,  /* sizes that do not fit together */
    MX_ERR_DTYPE,  /* an element type that the operation does not support */
    MX_ERR_VALUE,  /* an argument outside its range */
    MX_ERR_MEMORY, /* the host or device is out of memory */
    MX_ERR_IO,     /* a file that is missing or damaged or cannot be written */
    MX_ERR_MPI,    /* the message layer failed */
    MX_ERR_STATE,  /* a released tensor, a consumed tape, a call at the wrong time */
} mx_status;

/* Records the message and returns `code`. Never called inside an OpenMP region. */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_fail(mx_status code, const char *format, ...);

/* Puts "context: " before the last message; returns `code` unchanged. */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_context(mx_status code, const char *format, ...);

/* The message of the last failure on this thread; valid until the next one. */
const char *mx_message(void);

/* Passes a failure up to the caller. The only macro that hides control flow. */
#define MX_TRY(expression)                                                                                             \
    do {                                                                                                               \
        mx_status mx_try_status = (expression);                                                                        \
        if (mx_try_status != MX_OK)                                                                                    \
            return mx_try_status;                                                                                      \
    } while (0)

#endif
