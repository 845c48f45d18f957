/* Operators of tensors. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/pointwise.h"

/* The number at stack index `number`, the other operand being the tensor at `tensor`: an integer dtype must be able to
 * hold it. */
static double operand(lua_State *L, const char *op, int tensor, int number)
{
    double value = lua_tonumber(L, number);
    mxl_try(L, mx_want_number(op, "", mxl_check_tensor(L, tensor)->dtype, value));
    return value;
}

/* With a number on either side, the operator becomes an affine map or a power, so that the number is not rounded. */

static int affine(lua_State *L, int tensor, double scale, double shift)
{
    mx_tensor *t = mxl_check_tensor(L, tensor), *out = NULL;
    mxl_try(L, mx_apply_affine(t, scale, shift, &out));
    mxl_push_tensor(L, out);
    return 1;
}

static int power(lua_State *L, int tensor, double exponent)
{
    mx_tensor *t = mxl_check_tensor(L, tensor), *out = NULL;
    mxl_try(L, mx_apply_pow(t, exponent, &out));
    mxl_push_tensor(L, out);
    return 1;
}

static int binary(lua_State *L, const mx_op *op)
{
    mx_tensor *in[2] = {mxl_check_tensor(L, 1), mxl_check_tensor(L, 2)}, *out = NULL;
    mxl_try(L, mx_apply(op, in, 2, MX_NO_ATTRS, &out));
    mxl_push_tensor(L, out);
    return 1;
}

static int tensor_add(lua_State *L)
{
    if (lua_isnumber(L, 1))
        return affine(L, 2, 1, operand(L, "add", 2, 1));
    if (lua_isnumber(L, 2))
        return affine(L, 1, 1, operand(L, "add", 1, 2));
    return binary(L, &mx_op_add);
}

static int tensor_sub(lua_State *L)
{
    if (lua_isnumber(L, 1))
        return affine(L, 2, -1, operand(L, "sub", 2, 1));
    if (lua_isnumber(L, 2))
        return affine(L, 1, 1, -operand(L, "sub", 1, 2));
    return binary(L, &mx_op_sub);
}

static int tensor_mul(lua_State *L)
{
    if (lua_isnumber(L, 1))
        return affine(L, 2, operand(L, "mul", 2, 1), 0);
    if (lua_isnumber(L, 2))
        return affine(L, 1, operand(L, "mul", 1, 2), 0);
    return binary(L, &mx_op_mul);
}

/* Converts the operand that is a number to a tensor of the other operand's dtype, or of f32 where that is bf16 and the
 * result has the other's dtype. */
static void number_to_tensor(lua_State *L, const char *op)
{
    int number = lua_isnumber(L, 1) ? 1 : lua_isnumber(L, 2) ? 2 : 0;
    if (!number)
        return;
    mx_tensor *t = NULL;
    mx_dtype dtype = mxl_check_tensor(L, 3 - number)->dtype;
    operand(L, op, 3 - number, number);
    mxl_try(L, mx_tensor_new(number == 2 && mx_dtype_computes(dtype) ? MX_F32 : dtype, &(mx_shape){0}, &t));
    mxl_set_element(L, t, 0, number);
    mxl_push_tensor(L, t);
    lua_replace(L, number);
}

static int tensor_div(lua_State *L)
{
    int tensor = lua_isnumber(L, 1) ? 2 : 1;
    bool integers = mx_dtype_is_integer(mxl_check_tensor(L, tensor)->dtype);
    if (integers)
        number_to_tensor(L, "div"); /* the operation then raises the error */
    else if (tensor == 2) {
        power(L, 2, -1);
        lua_replace(L, 2);
        return affine(L, 2, lua_tonumber(L, 1), 0);
    } else if (lua_isnumber(L, 2)) {
        return affine(L, 1, 1 / lua_tonumber(L, 2), 0);
    }
    return binary(L, &mx_op_div);
}

static int tensor_idiv(lua_State *L)
{
    number_to_tensor(L, "idiv");
    return binary(L, &mx_op_idiv);
}

static int tensor_mod(lua_State *L)
{
    number_to_tensor(L, "remainder");
    return binary(L, &mx_op_remainder);
}

static int tensor_unm(lua_State *L) { return affine(L, 1, -1, 0); }

static int tensor_pow(lua_State *L)
{
    if (lua_isnumber(L, 2))
        return power(L, 1, lua_tonumber(L, 2));
    number_to_tensor(L, "power");
    return binary(L, &mx_op_power);
}

static int bits(lua_State *L, const mx_op *op)
{
    number_to_tensor(L, op->name);
    return binary(L, op);
}

static int tensor_band(lua_State *L) { return bits(L, &mx_op_bitwise_and); }
static int tensor_bor(lua_State *L) { return bits(L, &mx_op_bitwise_or); }
static int tensor_bxor(lua_State *L) { return bits(L, &mx_op_bitwise_xor); }
static int tensor_shl(lua_State *L) { return bits(L, &mx_op_shift_left); }
static int tensor_shr(lua_State *L) { return bits(L, &mx_op_shift_right); }

static int tensor_bnot(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1), *out = NULL;
    mxl_try(L, mx_apply(&mx_op_bitwise_not, &t, 1, MX_NO_ATTRS, &out));
    mxl_push_tensor(L, out);
    return 1;
}

/* < and <= must return a Lua boolean, so both sides are numbers or tensors of one element. */
static double one_value(lua_State *L, int i)
{
    if (lua_type(L, i) == LUA_TNUMBER)
        return lua_tonumber(L, i);
    const mx_tensor *t = mxl_check_values(L, i, false);
    if (mx_count(t) != 1)
        luaL_error(L,
                   "< and > compare tensors of one element, not %s; t:lt(x), t:le(x), t:gt(x) and t:ge(x) compare "
                   "element by element",
                   mx_tensor_text(t));
    return mxl_element(L, t, 0);
}

static int tensor_lt(lua_State *L)
{
    lua_pushboolean(L, one_value(L, 1) < one_value(L, 2));
    return 1;
}

static int tensor_le(lua_State *L)
{
    lua_pushboolean(L, one_value(L, 1) <= one_value(L, 2));
    return 1;
}

const luaL_Reg mxl_tensor_operators[] = {{"__add", tensor_add},
                                         {"__sub", tensor_sub},
                                         {"__mul", tensor_mul},
                                         {"__div", tensor_div},
                                         {"__idiv", tensor_idiv},
                                         {"__mod", tensor_mod},
                                         {"__band", tensor_band},
                                         {"__bor", tensor_bor},
                                         {"__bxor", tensor_bxor},
                                         {"__shl", tensor_shl},
                                         {"__shr", tensor_shr},
                                         {"__bnot", tensor_bnot},
                                         {"__unm", tensor_unm},
                                         {"__pow", tensor_pow},
                                         {"__lt", tensor_lt},
                                         {"__le", tensor_le},
                                         {NULL, NULL}};
