/* The guarded host computes as the host does, what is mapped is a copy, and a look at tensor memory from outside of the
 * device ends the process. */
#include "check.h"
#include "core/tensor.h"
#include "host/guarded.h"
#include "ops/table.h"

#include <sys/wait.h>
#include <unistd.h>

static mx_tensor *new_tensor(int64_t n, double value)
{
    mx_tensor *t = NULL;
    CHECK(mx_tensor_new(MX_F32, &(mx_shape){1, {n}}, &t) == MX_OK, "%s", mx_message());
    CHECK(mx_tensor_fill(t, value) == MX_OK, "%s", mx_message());
    return t;
}

static void test_values(void)
{
    mx_tensor *a = new_tensor(1000, 3), *b = new_tensor(1000, 4), *c = NULL;
    CHECK(mx_apply(&mx_op_mul, (mx_tensor *[]){a, b}, 2, MX_NO_ATTRS, &c) == MX_OK, "%s", mx_message());
    float values[2] = {0}, changed = 7;
    CHECK(mx_tensor_read(c, 998, 2, values) == MX_OK && values[0] == 12 && values[1] == 12, "%g", (double)values[0]);
    CHECK(mx_tensor_write(c, 999, 1, &changed) == MX_OK, "%s", mx_message());
    mx_map map;
    CHECK(mx_tensor_map(c, 998, 2, MX_MAP_UPDATE, &map) == MX_OK, "%s", mx_message());
    float *mapped = map.data;
    CHECK(mapped[0] == 12 && mapped[1] == 7, "%g", (double)mapped[1]);
    mapped[0] = 5;
    CHECK(mx_tensor_read(c, 998, 1, values) == MX_OK && values[0] == 12, "what is mapped is a copy");
    mx_tensor_unmap(&map);
    CHECK(mx_tensor_read(c, 998, 1, values) == MX_OK && values[0] == 5, "until it is unmapped");
    mx_release(a);
    mx_release(b);
    mx_release(c);
}

/* Whether a child process survives reading a value. Sanitizers make an exit status of the signal. */
static bool can_read(const mx_tensor *t, bool by_data)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        volatile float value = *(volatile float *)(by_data ? mx_data(t) : mx_address(t));
        (void)value;
        _exit(EXIT_SUCCESS);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "a child process");
    return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

static void test_guard(void)
{
    mx_tensor *t = new_tensor(1, 1);
    CHECK(!can_read(t, false), "the address is not one of the host");
    CHECK(!can_read(t, true), "mx_data is for host functions");
    mx_release(t);
}

int main(void)
{
    mx_tensor *before = NULL;
    CHECK(mx_tensor_new(MX_F32, &(mx_shape){0}, &before) == MX_OK && can_read(before, false) && can_read(before, true),
          "the host's values are in reach");
    mx_guarded_use();
    mx_release(before);
    test_values();
    test_guard();
    return check_done();
}
