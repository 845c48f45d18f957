--- Bad input to operations: one clear error that says which operation, what was given and where in the script; and an
-- engine that works on afterwards.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local refused = checks.assert_raises_here

TestErrors = {}

function TestErrors.setUp()
    TestErrors.step = mx.step()
end

function TestErrors.tearDown()
    local step <close> = TestErrors.step
    TestErrors.step = nil
    assert(step)
end

function TestErrors.test_convolutions()
    local x, w = mx.zeros { 2, 4, 5, 5 }, mx.zeros { 6, 4, 3, 3 }
    refused({ "conv2d", "w has 4 channels in a group, x has 3" }, function()
        return mx.conv2d(mx.zeros { 2, 3, 5, 5 }, w)
    end)
    refused({ "conv2d", "groups = 3 must divide" }, function() return mx.conv2d(x, w, { groups = 3 }) end)
    refused({ "conv2d", "'x' must have 4 dimensions" }, function() return mx.conv2d(mx.zeros { 4, 5, 5 }, w) end)
    refused({ "conv2d", "the kernel covers 9 elements of dimension 3, x has 5 with its padding" }, function()
        return mx.conv2d(x, w, { dilation = 4 })
    end)
    refused({ "conv2d", "stride = 0 must be at least 1" }, function() return mx.conv2d(x, w, { stride = 0 }) end)
    refused({ "conv2d", "stride has 3 entries; expected a number or 2" }, function()
        return mx.conv2d(x, w, { stride = { 1, 1, 1 } })
    end)
    refused({ "conv2d", "padding = -1 must be at least 0" }, function() return mx.conv2d(x, w, { padding = -1 }) end)
    refused({ "conv2d", "'padding' is 'full'; expected one of: same, causal" }, function()
        return mx.conv2d(x, w, { padding = "full" })
    end)
    refused({ "conv2d", "padding = 'same' needs a stride of 1, not 2" }, function()
        return mx.conv2d(x, w, { padding = "same", stride = 2 })
    end)
    refused({ "conv2d", "'bias' must be (6)" }, function() return mx.conv2d(x, w, mx.zeros { 4 }) end)
    refused({ "conv2d", "'x' must be f32, bf16 or f64" }, function() return mx.conv2d(x:to("i32"), w) end)
    refused({ "conv2d", "f64 mixes with no other float" }, function() return mx.conv2d(x, w:to("f64")) end)
end

function TestErrors.test_options_by_name()
    refused({ "options are given by name, as in mx.chunk(t, { n = 2, dim = 1 })" }, function()
        return mx.chunk(mx.zeros { 4 }, 2)
    end)
    refused({ "options are given by name, as in mx.split(t, { size = 2, dim = 1 })" }, function()
        return mx.zeros({ 4 }):split(2)
    end)
end

function TestErrors.test_functions_that_are_no_methods()
    refused({ "a tensor has no method 'backward'; use mx.backward(t)" }, function()
        local x = mx.ones(2):sum():backward()
        return x
    end)
end

function TestErrors.test_embedding_bags()
    local t, ids, weights = mx.zeros { 4, 3 }, mx.tensor({ { 0, 3 } }, "i32"), mx.ones { 1, 2 }
    local function offsets(...)
        local starts = mx.tensor({ ... }, "i32")
        return function() return mx.embedding_bag(t, mx.tensor({ 0, 3 }, "i32"), starts) end
    end
    refused({ "embedding_bag", "offset 1 of bag 1: offsets begin with 0, ascend, and end at most at 2" }, offsets(1))
    refused({ "embedding_bag", "offset 1 of bag 3" }, offsets(0, 2, 1))
    refused({ "embedding_bag", "offset 3 of bag 2" }, offsets(0, 3))
    refused({ "embedding_bag", "id 3 at [2] is outside the vocabulary of 3" }, function()
        return mx.embedding_bag(t[{ { 1, 3 } }], mx.tensor({ 0, 3 }, "i32"), mx.tensor({ 0 }, "i32"))
    end)
    refused({ "embedding_bag", "ids must be (bags, length), or (ids) with offsets" }, function()
        return mx.embedding_bag(t, ids:view(-1))
    end)
    refused({ "embedding_bag", "with offsets (bags), ids must be (ids)" }, function()
        return mx.embedding_bag(t, ids, mx.tensor({ 0 }, "i32"))
    end)
    refused({ "embedding_bag", "weights are the factors of a sum; mode is 'mean'" }, function()
        return mx.embedding_bag(t, ids, nil, weights)
    end)
    refused({ "embedding_bag", "'weights' must be (1, 2)" }, function()
        return mx.embedding_bag(t, ids, nil, mx.ones { 2 }, { mode = "sum" })
    end)
    refused({ "embedding_bag", "mode", "sum, mean, max" }, function()
        return mx.embedding_bag(t, ids, { mode = "min" })
    end)
end

function TestErrors.test_meshes()
    refused({ "axes are a list, such as {{name = 'data', ici = mx.ranks()}}" }, function()
        mx.mesh_define { data = mx.ranks() }
    end)
end

function TestErrors.test_linear_systems()
    local a = mx.tensor { { 1, 2 }, { 2, 4 } }
    refused({ "linalg_solve", "the matrix is singular: pivot 2 is 0" }, function()
        return mx.linalg.solve(a, mx.ones(2))
    end)
    refused({ "linalg_solve", "matrix 2 is singular" }, function()
        local x = mx.linalg.inv(mx.stack(mx.tensor { { 1, 0 }, { 0, 1 } }, a))
        return x
    end)
    refused({ "linalg_eigh", "matrix 2 has NaN or infinities" }, function()
        return mx.linalg.eigh(mx.tensor { { { 1 } }, { { 0 / 0 } } })
    end)
    refused({ "linalg_cholesky", "is not positive definite: its leading minor of order 2" }, function()
        return mx.linalg.cholesky(mx.tensor { { 1, 2 }, { 2, 1 } })
    end)
    refused({ "linalg_solve", "'a' must be square matrices" }, function()
        return mx.linalg.solve(mx.zeros { 2, 3 }, mx.zeros { 2 })
    end)
    refused({ "linalg.inv", "square matrices", "2x3" }, function()
        local x = mx.linalg.inv(mx.zeros { 2, 3 })
        return x
    end)
    refused({ "linalg_svd", "matrix 2 has NaN or infinities" }, function()
        return mx.linalg.svd(mx.tensor { { { 1, 2 } }, { { 0 / 0, 1 } } })
    end)
    refused({ "linalg_qr", "the matrix has NaN or infinities" }, function()
        local q = mx.linalg.qr(mx.tensor { { 1, 2 }, { 1 / 0, 1 } })
        return q
    end)
    refused({ "linalg_qr", "'a' must be matrices (..., m, n): f32 (3)" }, function()
        local q = mx.linalg.qr(mx.ones(3))
        return q
    end)
    refused({ "linalg_qr", "must not have more columns than rows; mx.linalg.qr takes" }, function()
        return mx.linalg_qr(mx.ones(2, 3))
    end)
    refused({ "linalg_slogdet", "square matrices", "f32 (2, 3)" }, function()
        local d = mx.linalg.det(mx.ones(2, 3))
        return d
    end)
    refused({ "linalg_solve", "the matrix is singular" }, function()
        local w = a:clone():requires_grad()
        mx.backward(mx.linalg.det(w))
    end)
    refused({ "linalg_solve", "'b' must be (..., n, k)" }, function() return mx.linalg.solve(a, mx.zeros { 3 }) end)
    refused({ "linalg_solve", "'a' must be f32 or f64" }, function() return mx.linalg.solve(a:to("bf16"), a) end)
    refused({ "linalg_solve", "must be f32", "f64" }, function() return mx.linalg.solve(a, a:to("f64")) end)
end

function TestErrors.test_pooling()
    local x = mx.zeros { 2, 4, 5, 5 }
    refused({ "max_pool2d", "the window covers 6 elements of dimension 3, x has 5" }, function()
        return mx.max_pool2d(x, { size = 6 })
    end)
    refused({ "avg_pool2d", "padding = 2 is more than half of the window of 3" }, function()
        return mx.avg_pool2d(x, { size = 3, padding = 2 })
    end)
    for _, dtype in ipairs { "f32", "f64" } do
        refused({ "max_pool2d_grad", "place 9 is outside 0 .. 8" }, function()
            local places = mx.full({ 1, 1, 2, 2 }, { value = 9, dtype = "i32" })
            local dy, with = mx.ones { 1, 1, 2, 2 }:to(dtype), { size = 2, stride = 1, shape = { 1, 1, 3, 3 } }
            return mx.max_pool2d_grad(dy, places, with)
        end)
        for _, place in ipairs { -1, 2400 } do
            refused({ "max_pool2d_grad", ("place %d is outside 0 .. 2399"):format(place) }, function()
                local places = mx.where(mx.eq(mx.arange(600), 333), place, 5):to("i32"):view(1, 1, 20, 30)
                local dy, with = mx.ones { 1, 1, 20, 30 }:to(dtype), { size = 2, shape = { 1, 1, 40, 60 } }
                return mx.max_pool2d_grad(dy, places, with)
            end)
        end
    end
    refused({ "max_pool1d", "'x' must have 3 dimensions" }, function() return mx.max_pool1d(x, { size = 2 }) end)
end

function TestErrors.test_channel_norms()
    local x, w = mx.zeros { 2, 6, 5 }, mx.ones { 4 }
    refused({ "batch_norm", "'weight' must have one dimension of 6" }, function() return (mx.batch_norm(x, w)) end)
    refused({ "batch_norm", "expected (N, C, ...)" }, function() return (mx.batch_norm(w)) end)
    refused({ "batch_norm", "mean and var are given together" }, function()
        return (mx.batch_norm(x, nil, nil, { mean = mx.zeros { 6 } }))
    end)
    refused({ "group_norm", "groups = 4 must divide the 6 channels" }, function()
        return (mx.group_norm(x, nil, nil, { groups = 4 }))
    end)
end

function TestErrors.test_inputs_by_name()
    local x, w = mx.zeros { 2, 6 }, mx.ones { 6 }
    refused({ "layernorm", "'bias' is 3; expected a tensor" }, function() return mx.layernorm(x, w, { bias = 3 }) end)
    refused({ "layernorm", "'bias' is given twice" }, function() return mx.layernorm(x, w, w, { bias = w }) end)
    refused({ "layernorm", "'weight'" }, function() return mx.layernorm(x, { weight = w }) end) -- must be in its place
    refused({ "mean" }, function() return mx.layernorm(x, w, { mean = w }) end)
end

function TestErrors.test_einsum()
    local a, b = mx.zeros { 2, 3 }, mx.zeros { 4, 5 }
    local function wrong(parts, ...)
        local arguments = table.pack(...)
        refused({ "einsum", table.unpack(parts) }, function()
            local t = mx.einsum(table.unpack(arguments, 1, arguments.n))
            return t
        end)
    end
    wrong({ "\"ij,jk->ik\"", "'j' is 3, but in operand 2 it is 4" }, "ij,jk->ik", a, b)
    wrong({ "'ijk' names 3 dimensions, operand 1 has 2" }, "ijk", a)
    wrong({ "it names more than the 1 operands that are given" }, "ij,jk", a)
    wrong({ "it names 1 operands, 2 are given" }, "ij", a, b)
    wrong({ "the result names 'z', which no operand has" }, "ij->iz", a)
    wrong({ "the result names 'i', which it already has" }, "ij->ii", a)
    wrong({ "'i' is 2, but in operand 1 it is 3" }, "ii", a)
    wrong({ "'i' is 1 and 3 in one operand" }, "ii", mx.zeros { 1, 3 })
    wrong({ "'2' is no name of a dimension" }, "i2", a)
    wrong({ "\"...\" stands twice" }, "...i...", a)
    wrong({ "the equation comes first" }, a, "ij")
end

function TestErrors.test_an_empty_list()
    refused({ "concat: the list of tensors is empty" }, function() return mx.concat({}, { dim = 1 }) end)
    refused({ "dropout: argument 2, 0.1, is no tensor; options are given by name, as in {rate = 0.1}" }, function()
        return mx.dropout(mx.ones(2), 0.1)
    end)
    refused({ "concat: argument 3, 1, is no tensor; options are given by name, as in {dim = 1}" }, function()
        return mx.concat({ mx.ones(2), mx.ones(2) }, 1)
    end)
    refused({ "transpose: argument 2, 1, is no tensor", "as in {dim1 = 1, dim2 = 2}" }, function()
        return mx.ones(2, 3):transpose(1, 2)
    end)
    refused({ "sum: ", "as in {dim = 2, keepdim = true}" }, function() return mx.ones(2, 3):sum(2, true) end)
    refused({ "cross_entropy: input 3 ('targets') is missing: mean of -log softmax" }, function()
        return mx.cross_entropy(mx.ones(2, 3), mx.zeros({ 2 }, "i32"))
    end)
    refused({ "input 2 ('targets') must be i32; use t:to(\"i32\")" }, function()
        return mx.softmax_cross_entropy(mx.ones(2, 3), mx.zeros({ 2 }, "i64"))
    end)
    refused({ "kl_div: batchmean divides by the first dimension" }, function()
        return mx.kl_div(mx.tensor(0), mx.tensor(1), { reduction = "batchmean" })
    end)
    refused({ "mx.run.open does not exist; it has check_subject" }, function() return mx.run.open() end)
    refused({ "mx.tensorboard.close does not exist; it has " }, function() return mx.tensorboard.close() end)
    refused({ "stack: the list of tensors is empty" }, function() return mx.stack({}, { dim = 1 }) end)
end

function TestErrors.test_orders_and_indices()
    local x, index = mx.zeros { 2, 3 }, mx.zeros({ 2, 3 }, "i32")
    refused({ "topk: k = 4 must be in 0 .. 3, the size of dim 2", "f32 (2, 3)" }, function()
        return mx.topk(x, { k = 4 })
    end)
    refused({ "topk: k = -1 must be in 0 .. 2, the size of dim 1" }, function()
        return mx.topk(x, { k = -1, dim = 1 })
    end)
    refused({ "topk: attribute 'k' must be given" }, function() return mx.topk(x) end)
    refused({ "sort: dim = 3 is none of the 2 dimensions" }, function() return mx.sort(x, { dim = 3 }) end)
    refused({ "sort: input 1 ('x') must be f32, bf16" }, function() return mx.sort(x:to("e4m3")) end)
    refused({ "argsort: dim = -1 is none of the 0 dimensions" }, function() return mx.argsort(mx.zeros {}) end)
    refused({ "cumsum of i32 (2): a sum of 2147483648 does not fit i32; sum t:to(\"f32\")" }, function()
        return mx.cumsum(mx.tensor({ 2147483647, 1 }, "i32"))
    end)
    refused({ "scatter_add: index 3 at [1, 2] is outside 0 .. 2 (an index counts from 0)" }, function()
        return mx.scatter_add(x, mx.tensor({ { 0, 3 }, { 0, 0 } }, "i32"), mx.zeros { 2, 2 }, { dim = 2 })
    end)
    refused({ "scatter: 'src' must be (2, 3)" }, function()
        return mx.scatter(x, index, mx.zeros { 2, 2 }, { dim = 1 })
    end)
    refused({ "scatter_add: input 3 ('src') must be f32" }, function()
        return mx.scatter_add(x, index, index, { dim = 1 })
    end)
    refused({ "scatter_reduce: attribute 'reduce' must be given: of the elements that belong together; scatter_add" },
        function() return mx.scatter_reduce(x, index, x, { dim = 1 }) end)
    refused({ "scatter_reduce: attribute 'reduce' is 'amax'; expected one of: max, min, mean" }, function()
        return mx.scatter_reduce(x, index, x, { dim = 1, reduce = "amax" })
    end)
    refused({ "scatter_reduce: 'x' must be f32, bf16 or f64" }, function()
        return mx.scatter_reduce(index, index, index, { dim = 1, reduce = "mean" })
    end)
    refused({ "scatter_reduce: index 3 at [1, 2] is outside 0 .. 2 (an index counts from 0)" }, function()
        return mx.scatter_reduce(x, mx.tensor({ { 0, 3 }, { 0, 0 } }, "i32"), mx.zeros { 2, 2 },
            { dim = 2, reduce = "min" })
    end)
    refused({ "scatter: index must have the dimensions of (2, 3), and be no longer in any but dim 1" }, function()
        return mx.scatter(x, mx.zeros({ 2, 4 }, "i32"), mx.zeros { 2, 4 }, { dim = 1 })
    end)
end

-- What an operation cannot guess has no standard value.
function TestErrors.test_values_must_be_given()
    refused({ "full: attribute 'value' must be given: value of every element" }, function()
        local t = mx.full { 2, 3 }
        return t
    end)
    refused({ "full: attribute 'value' must be given" }, function()
        local t = mx.full({ 2 }, { dtype = "i32" })
        return t
    end)
    refused({ "fill: attribute 'value' must be given: the value" }, function()
        local t = mx.fill(mx.ones(2))
        return t
    end)
    refused({ "mx.unique(t) takes no options" }, function() return (mx.unique(mx.ones(2, 2), { dim = 1 })) end)
end

function TestErrors.test_greatest_common_divisors()
    lu.assertEquals(mx.util.gcd(12, 18.0), 6)
    refused({ "util.gcd: expected two whole numbers, got 1 and" }, function() return (mx.util.gcd(1, 0 / 0)) end)
end

function TestErrors.test_arrangements()
    local x = mx.zeros { 2, 3 }
    local function wrong(part, op, options, t)
        refused({ part }, function()
            local y = mx[op](t or x, options)
            return y
        end)
    end
    wrong("flip: dim names dimension 1 twice", "flip", { dim = { 1, -2 } })
    wrong("flip: dim = 3 is none of the 2 dimensions", "flip", { dim = { 1, 3 } })
    wrong("flip: attribute 'dim' is", "flip", { dim = {} })
    wrong("expected a dimension or a list of dimensions", "flip", { dim = { "a" } })
    wrong("roll: attribute 'shift' must be given", "roll", {})
    wrong("roll: dim = -3 is none of the 2 dimensions", "roll", { shift = 1, dim = -3 })
    wrong("tile: times (2) must have a number for each of the 2 dimensions", "tile", { times = { 2 } })
    wrong("tile: times (2, -1) must not be negative", "tile", { 2, -1 })
    wrong("expand: x does not broadcast to (4, 3)", "expand", { 4, 3 })
    wrong("expand: x does not broadcast to (-1, 2, 3)", "expand", { -1, 2, 3 })
    wrong("pad: sides (1) must have two numbers a dimension, from the last of 2", "pad", { 1 })
    wrong("pad: sides (1, 1, 1, 1, 1, 1) must have two numbers a dimension", "pad", { 1, 1, 1, 1, 1, 1 })
    wrong("pad: nothing is given; before = {...} and after = {...}", "pad", {})
    wrong("pad: sides is given, and so is before or after", "pad", { sides = { 1, 1 }, before = { 1, 1 } })
    wrong("pad: before (1) and after (0, 0) must have a number for each of the 2 dimensions", "pad",
        { before = { 1 }, after = { 0, 0 } })
    wrong("must not be negative; mx.narrow cuts", "pad", { before = { 0, -1 }, after = { 0, 0 } })
    wrong("pad: value = 0.5 is no value of i32", "pad", { before = { 1, 0 }, after = { 0, 0 }, value = 0.5 },
        x:to("i32"))
    wrong("pad: mode = 'reflect' with before (0, 3) and after (0, 0) needs at least 4 elements in dim 2", "pad",
        { before = { 0, 3 }, after = { 0, 0 }, mode = "reflect" })
    wrong("needs at least 1 elements in dim 1", "pad", { before = { 0, 0 }, after = { 1, 0 }, mode = "replicate" },
        mx.zeros(0, 2))
    wrong("pad: value = 7 is for mode = 'constant', not 'circular'", "pad",
        { before = { 0, 1 }, after = { 0, 0 }, mode = "circular", value = 7 })
    wrong("'mode' is 'edge'; expected one of: constant, reflect, replicate, circular", "pad",
        { before = { 0, 1 }, after = { 0, 0 }, mode = "edge" })
    wrong("tril: x must have at least two dimensions", "tril", {}, mx.zeros { 3 })
    wrong("stack: the result would have 7 dimensions", "stack", {}, mx.zeros { 1, 1, 1, 1, 1, 1 })
    wrong("split: expected either size, the elements of each part (1 or more), or sizes", "split", {})
    wrong("split: expected either size", "split", { size = 1, sizes = { 2 } })
    wrong("split: sizes must be whole numbers whose sum is 3, the size of dim 2", "split",
        { sizes = { 2, 2 }, dim = 2 })
    wrong("split: dim = 3 is none of the 2 dimensions", "split", { size = 1, dim = 3 })
    wrong("chunk: n must be given, the number of parts, 1 or more", "chunk", {})
    wrong("one_hot: input 1 ('ids') must be i32", "one_hot", { classes = 3 })
    wrong("one_hot: id 3 at [2] is outside 0 .. 2 (ids count from 0)", "one_hot", { classes = 3 },
        mx.tensor({ 0, 3 }, "i32"))
    wrong("sum: dim names dimension 2 twice", "sum", { dim = { 2, -1 } })
    wrong("max: there is nothing to take the largest of", "max", { dim = 1 }, mx.zeros { 0, 3 })
    wrong("min: there is nothing to take the least of", "min", {}, mx.zeros { 0, 3 })
    wrong("argmin: attribute 'dim' is", "argmin", { dim = { 1, 2 } })
    wrong("var: input 1 ('x') must be f32, bf16 or f64", "var", {}, x:to("i32"))
    wrong("softmax: dim = 3 is none of the 2 dimensions", "softmax", { dim = 3 })
    refused({ "stack: sizes differ: f32 (2, 3) and f32 (3)" }, function() return mx.stack(x, mx.zeros { 3 }) end)
    refused({ "index_select: id -1 at [1] is outside 0 .. 1" }, function()
        return mx.index_select(x, mx.tensor({ -1 }, "i32"))
    end)
    refused({ "did you mean", "tile" }, function() return x["repeat"](x, { 2, 2 }) end)
end

function TestErrors.test_shapes()
    local a, b, v = mx.zeros { 2, 3 }, mx.zeros { 4, 5 }, mx.zeros { 3 }
    refused({ "matmul", "(2, 3)", "(4, 5)" }, function() return mx.matmul(a, b) end)
    refused({ "matmul", "(2, 3)", "(2, 3)" }, function() return a:matmul(a) end)
    refused({ "matmul", "(5)", "bias" }, function() return mx.matmul(a, mx.zeros { 3, 4 }, mx.zeros { 5 }) end)
    refused({ "matmul", "(2, 2, 3)", "(3, 3, 2)" }, function()
        return mx.matmul(mx.zeros { 2, 2, 3 }, mx.zeros { 3, 3, 2 })
    end)
    refused({ "matmul", "(2, 3, 4)", "(5, 4, 2)", "leading dimensions differ" }, function()
        return mx.matmul(mx.zeros { 2, 3, 4 }, mx.zeros { 5, 4, 2 })
    end)
    refused({ "matmul", "(3)", "(4, 5)" }, function() return mx.matmul(v, b) end)
    refused({ "matmul", "a is a vector" }, function() return mx.matmul(v, a, { trans_a = true }) end)
    refused({ "matmul", "mx.mul" }, function() return mx.matmul(a, mx.zeros {}) end)
    refused({ "matmul", "bias" }, function() return mx.matmul(a, v, mx.zeros { 1 }) end)
    for _, op in ipairs { "add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt" } do
        refused({ op, "(2, 3)", "(4, 5)" }, function() return mx[op](a, b) end)
    end
    refused({ "add", "(2, 3)", "(4, 5)" }, function() return a + b end)
    refused({ "mul", "(2, 3)", "(4, 5)" }, function() return a * b end)
    refused({ "where", "(4, 5)" }, function() return mx.where(mx.gt(a, 0), a, b) end)
    refused({ "gated", "(2, 3)", "(4, 5)" }, function() return mx.gated(a, b) end)
    refused({ "rmsnorm", "(2, 3)", "(4)" }, function() return mx.rmsnorm(a, mx.ones { 4 }) end)
    refused({ "layernorm", "(2, 3)", "(4)" }, function() return mx.layernorm(a, mx.ones { 4 }) end)
    refused({ "layernorm", "(2)" }, function() return mx.layernorm(a, v, mx.ones { 2 }) end)
    refused({ "concat", "(2, 3)", "(4, 5)" }, function() return mx.concat(a, b, { dim = 1 }) end)
    refused({ "reshape", "(2, 3)", "4" }, function() return a:view(4, 2) end)
    refused({ "reshape", "(2, 3)" }, function() return a:view(-1, 4) end)
    refused({ "reshape", "-1" }, function() return a:view(-1, -1) end)
    refused({ "add_", "(2, 3)", "(4, 5)" }, function() return mx.add_(a, b) end)
    refused({ "matmul_acc", "(2, 3)", "(4, 5)" }, function() return mx.matmul_acc(a, a, b) end)
    refused({ "copy", "(2, 3)", "(4, 5)" }, function() return mx.copy(a, b) end)
    refused({ "adamw", "(2, 3)", "(4, 5)" }, function()
        return mx.adamw(a, b, mx.zeros { 2, 3 }, mx.zeros { 2, 3 }, { lr = 1, step = 1 })
    end)
end

function TestErrors.test_dtypes()
    local f, i = mx.zeros { 2, 3 }, mx.zeros({ 2, 3 }, "i32")
    refused({ "matmul", "i32 (2, 3)" }, function() return mx.matmul(f, i, { trans_b = true }) end)
    refused({ "exp", "i32 (2, 3)", "f32" }, function() return mx.exp(i) end)
    refused({ "softmax", "i32" }, function() return mx.softmax(i) end)
    refused({ "embedding", "f32 (2, 3)", "i32" }, function() return mx.embedding(f, f) end)
    refused({ "where", "u8" }, function() return mx.where(f, f, f) end)
    refused({ "cross_entropy", "i32" }, function() return mx.cross_entropy(f, mx.zeros { 9, 3 }, mx.zeros { 2 }) end)
    refused({ "gather", "i32" }, function() return mx.gather(f, f, { dim = 1 }) end)
    refused({ "float16" }, function() return mx.zeros({ 2 }, "float16") end)
    refused({ "cast", "dtype" }, function() return mx.cast(f, { dtype = "f16" }) end)
    refused({ "f128" }, function() return f:to("f128") end)
    local d, whole = mx.zeros({ 2, 3 }, "f64"), mx.zeros({ 2, 3 }, "i64")
    refused({ "add", "f64 mixes with no other float", 't:to("f64")' }, function() return f + d end)
    refused({ "matmul", "f64 mixes with no other float" }, function() return mx.matmul(f, d, { trans_b = true }) end)
    refused({ "matmul", "the result can be f64, not bf16" }, function()
        return mx.matmul(d, d, { trans_b = true, dtype = "bf16" })
    end)
    refused({ "matmul", "the result can be f32 or bf16, not f64" }, function()
        return mx.matmul(f, f, { trans_b = true, dtype = "f64" })
    end)
    refused({ "rope", "'x' must be f32, bf16 or f64" }, function() return mx.rope(mx.zeros({ 1, 1, 1, 2 }, "i32")) end)
    refused({ "moe_route", "f32 or bf16", "f64" }, function() return mx.moe_route(d, { top = 1 }) end)
    refused({ "add", "integers of one dtype", "i64", "i32" }, function() return whole + i end)
    refused({ "add", "2^53", "mx.tensor" }, function() return whole + 9007199254740993 end)
    refused({ "full", "value", "2^53" }, function()
        return mx.full({ 2 }, { dtype = "i64", value = 9007199254740993 })
    end)
end
function TestErrors.test_i64_sums()
    local most = mx.tensor({ math.maxinteger, 1 }, "i64")
    refused({ "sum", "does not fit i64", 't:to("f64")' }, function() return most:sum() end)
end

function TestErrors.test_arguments()
    local a = mx.zeros { 2, 3 }
    refused({ "matmul", "'b'" }, function() return mx.matmul(a) end)
    refused({ "exp", "2" }, function() return mx.exp(a, a) end)
    refused({ "tensor" }, function() return mx.matmul(a, "text") end)
    refused({ "tensor" }, function() return mx.matmul(a, {}, {}) end)
    refused({ "exp", "'x'" }, function() return mx.exp(nil) end)
    refused({ "mulx" }, function() return mx.mulx(a, a) end)
    refused({ "nothing" }, function() return a:nothing() end)
end

-- A wrapper that hands on what it was not given.
function TestErrors.test_nothing_at_the_end_is_nothing()
    local x = mx.ones { 2, 2 }
    lu.assertEquals(mx.matmul(x, x, nil, nil):totable(), mx.matmul(x, x):totable())
    lu.assertEquals(mx.all_reduce(x, nil):totable(), x:totable())
end

function TestErrors.test_attributes()
    local a = mx.zeros { 2, 3 }
    refused({ "matmul", "trans_c", "trans_" }, function() return mx.matmul(a, a, { trans_c = true }) end)
    refused({ "sum", "keepdims", "keepdim" }, function() return mx.sum(a, { dim = 1, keepdims = true }) end)
    refused({ "attention", "casual", "causal" }, function() return mx.attention(a, a, a, { casual = true }) end)
    refused({ "matmul", "trans_a", "true or false" }, function() return mx.matmul(a, a, { trans_a = 1 }) end)
    refused({ "sum", "dim" }, function() return mx.sum(a, { dim = "first" }) end)
    refused({ "sum", "dim" }, function() return mx.sum(a, { dim = 1.5 }) end)
    refused({ "gelu", "approximate", "'fast'", "tanh", "none" }, function()
        return mx.gelu(a, { approximate = "fast" })
    end)
    refused({ "pow", "exponent", "given" }, function() return mx.pow(a) end)
    refused({ "reshape", "shape" }, function() return mx.reshape(a, { shape = 6 }) end)
end

function TestErrors.test_dimensions()
    local a = mx.zeros { 2, 3 }
    for _, dim in ipairs { 3, -3, 0 } do
        refused({ "sum", "dim" }, function() return mx.sum(a, { dim = dim }) end)
        refused({ "concat", "dim" }, function() return mx.concat(a, a, { dim = dim }) end)
        refused({ "narrow", "dim" }, function() return mx.narrow(a, { dim = dim, start = 1, length = 1 }) end)
        refused({ "transpose", "dim" }, function() return mx.transpose(a, { dim1 = 1, dim2 = dim }) end)
    end
    refused({ "argmax", "dim" }, function() return mx.argmax(a, { dim = 3 }) end)
    refused({ "permute", "(2, 3)" }, function() return mx.permute(a, { dims = { 1, 1 } }) end)
    refused({ "permute", "(2, 3)" }, function() return mx.permute(a, { dims = { 1 } }) end)
    refused({ "permute", "(2, 3)" }, function() return mx.permute(a, { dims = { 0, 1 } }) end)
    refused({ "narrow", "(2, 3)" }, function() return mx.narrow(a, { dim = 1, start = 2, length = 2 }) end)
    refused({ "narrow", "(2, 3)" }, function() return mx.narrow(a, { dim = 1, start = 0, length = 1 }) end)
    refused({ "narrow", "(2, 3)" }, function() return mx.narrow(a, { dim = 2, start = 1, length = -1 }) end)
    refused({ "write_slice", "(2, 3)" }, function() return mx.write_slice(a, a, { dim = 1, start = 2 }) end)
    refused({ "3" }, function() return a:size(3) end)
    refused({ "3" }, function() return a[3] end)
    refused({ "(2, 3)" }, function() return a:get(1, 4) end)
    refused({ "max" }, function() return mx.max(mx.zeros { 0, 4 }) end)
    refused({ "argmax" }, function() return mx.argmax(mx.zeros { 4, 0 }, { dim = 2 }) end)
end

function TestErrors.test_sizes()
    refused({ "-1" }, function() return mx.zeros { 2, -1 } end)
    refused({ "6" }, function() return mx.zeros { 1, 1, 1, 1, 1, 1, 1 } end)
    refused({ "2.5" }, function() return mx.zeros { 2.5 } end)
    refused({ "mx.tensor" }, function() return mx.tensor { { 1, 2 }, { 3 } } end)
    refused({ "mx.tensor", "string" }, function() return mx.tensor { 1, "x" } end)
    refused({ "300", "u8" }, function() return mx.tensor({ 300 }, "u8") end)
    refused({ "0.5", "i32" }, function() return mx.tensor({ 0.5 }, "i32") end)
    refused({ "item", "(2)" }, function() return mx.zeros({ 2 }):item() end)
    -- More elements than 64 bits count must not wrap around to a small number.
    refused({}, function() return mx.zeros { 1 << 40, 1 << 40 } end)
    refused({}, function() return mx.zeros { 1 << 62, 4 } end)
end

function TestErrors.test_token_ids()
    local weight = mx.randn({ 10, 3 }, { seed = 1 })
    for _, id in ipairs { 10, -1, 2147483647, -2147483648 } do
        local ids = mx.tensor({ { 1, 2 }, { 3, id } }, "i32")
        refused({ "embedding", tostring(id), "10" }, function() return mx.embedding(weight, ids) end)
        refused({ "embedding_acc", tostring(id), "10" }, function()
            return mx.embedding_acc(weight, ids, mx.zeros { 2, 2, 3 })
        end)
        refused({ "cross_entropy", tostring(id), "10" }, function()
            return mx.cross_entropy(mx.zeros { 2, 2, 3 }, weight, ids)
        end)
        -- One that the mask leaves out is not looked at.
        local mask = mx.tensor({ { 1, 1 }, { 1, 0 } }, "u8")
        local loss = mx.cross_entropy(mx.zeros { 2, 2, 3 }, weight, ids, mask):item()
        lu.assertAlmostEquals(loss, math.log(10), 1e-6)
    end
    refused({ "gather", "3", "0 .. 2" }, function()
        return mx.gather(weight, mx.tensor({ { 3 } }, "i32"), { dim = 2 })
    end)
    refused({ "gather", "-1" }, function() return mx.gather(weight, mx.tensor({ { -1 } }, "i32"), { dim = 2 }) end)
end

function TestErrors.test_gradients_are_floats()
    local x = mx.ones { 4, 3 }
    refused({ "reduce_to", "i8" }, function() return mx.reduce_to(x, { shape = { 1, 3 }, dtype = "i8" }) end)
    refused({ "sum_grad", "u8" }, function() return mx.sum_grad(mx.ones {}, { shape = { 4, 3 }, dtype = "u8" }) end)
    refused({ "unary_grad", "i32" }, function() return mx.unary_grad(x, x, { ["function"] = "exp", dtype = "i32" }) end)
    refused({ "attention_grad", "i8" }, function()
        local q, lse = mx.ones { 1, 2, 1, 4 }, mx.ones { 1, 1, 2 }
        return mx.attention_grad(q, q, q, q, lse, q, { dk_dtype = "i8" })
    end)
end

function TestErrors.test_huge_integers()
    local x, q = mx.ones { 4, 3 }, mx.ones { 1, 2, 1, 4 }
    for _, huge in ipairs { math.maxinteger, math.mininteger, (1 << 53) + 1 } do
        refused({ "narrow", "2^53" }, function() return mx.narrow(x, { dim = 1, start = 1, length = huge }) end)
        refused({ "sum", "dim" }, function() return mx.sum(x, { dim = huge }) end)
        refused({ "attention", "window" }, function() return mx.attention(q, q, q, { window = huge }) end)
    end
    refused({ "reshape", "larger than any memory" }, function()
        return mx.reshape(x, { shape = { 1 << 40, 1 << 40 } })
    end)
    refused({ "sum", "4294967297" }, function() return mx.sum(x, { dim = (1 << 32) + 1 }) end)
    lu.assertEquals(mx.rand({ shape = { 2 }, seed = math.maxinteger }):size(), { 2 })
end

function TestErrors.test_help_says_what_must_be_given()
    for name, what in pairs({ shape = "required", seed = "optional", std = "1" }) do
        lu.assertEquals(mx.help("randn"):match("\n  " .. name .. " +(%w+)"), what)
    end
    lu.assertErrorMsgContains("attribute 'shape' must be given", mx.randn, { std = 1 })
    lu.assertEquals(mx.randn({ shape = { 2 } }):size(), { 2 })
end

-- Lines break at blanks; what is longer than a line stays whole; a letter of UTF-8 is one column.
function TestErrors.test_long_messages_are_wrapped()
    lu.assertEquals(mx.wrap("one two three", 7), "one two\n    three")
    lu.assertEquals(mx.wrap("one two three", 13), "one two three")
    lu.assertEquals(mx.wrap("a averylongword  b c d", 9), "a\n    averylongword\n    b c d")
    lu.assertEquals(mx.wrap("ä ö ü é", 7), "ä ö ü é")
    lu.assertEquals(mx.wrap("  in front", 80), "  in front")
    lu.assertEquals(mx.wrap("", 5), "")
    lu.assertEquals(mx.wrap("long enough to be wrapped", 0), "long enough to be wrapped")
end
