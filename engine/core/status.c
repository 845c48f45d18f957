#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048 };

static _Thread_local char message[MESSAGE_BYTES];

mx_status mx_fail(mx_status code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return code;
}

mx_status mx_context(mx_status code, const char *format, ...)
{
    char inner[MESSAGE_BYTES];
    memcpy(inner, message, sizeof inner);
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    int room = MESSAGE_BYTES - used - 3; /* for ": " and the end */
    if (used >= 0 && room > 0)
        snprintf(message + used, (size_t)room + 3, ": %.*s", room, inner);
    return code;
}

const char *mx_message(void) { return message; }
