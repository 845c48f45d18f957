#define PATH_NAME mx_conv_portable
#include "kernels/conv_rows.h"
