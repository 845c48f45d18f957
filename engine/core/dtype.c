#include "core/dtype.h"

#include <stdio.h>
#include <stdlib.h>

bool mx_dtype_parse(const char *name, mx_dtype *dtype)
{
    for (int d = 0; d < MX_DTYPES; d++)
        if (strcmp(name, mx_dtypes[d].name) == 0) {
            *dtype = (mx_dtype)d;
            return true;
        }
    return false;
}

void mx_dtype_list(bool (*belongs)(mx_dtype), char text[MX_DTYPE_LIST_BYTES])
{
    const char *names[MX_DTYPES];
    int n = 0;
    for (int d = 0; d < MX_DTYPES; d++)
        if (!belongs || belongs((mx_dtype)d))
            names[n++] = mx_dtypes[d].name;
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < n && used < MX_DTYPE_LIST_BYTES; i++)
        used += (size_t)snprintf(text + used, MX_DTYPE_LIST_BYTES - used, "%s%s",
                                 i == 0      ? ""
                                 : i < n - 1 ? ", "
                                             : " or ",
                                 names[i]);
}

void mx_dtype_unexpected(mx_dtype dtype, const char *function)
{
    bool known = (unsigned)dtype < MX_DTYPES;
    fprintf(stderr, "mxlua: internal error: %s does not take the dtype %s; please report this\n", function,
            known ? mx_dtypes[dtype].name : "of that number");
    abort();
}
