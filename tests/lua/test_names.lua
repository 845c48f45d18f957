--- Names that do not exist: of options, of fields, of operations. Each is an error with the nearest one.

local mx = require "mx"
local lu = require "luaunit"

local function refused(parts, fn, ...)
    local ok, message = pcall(fn, ...)
    lu.assertFalse(ok, "nothing was raised; expected: " .. table.concat(parts, ", "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

local function get(object, key) return object[key] end

local function set(object, key, value) object[key] = value end

TestConstructors = {}

-- Each makes a (2, 3) tensor of bf16 in all these ways. Not mx.full, which needs a value too.
function TestConstructors.test_all_take_a_shape_alike()
    for _, name in ipairs { "zeros", "ones", "randn", "rand" } do
        local make = mx[name]
        for _, t in ipairs {
            make { shape = { 2, 3 }, dtype = "bf16" }, make({ 2, 3 }, { dtype = "bf16" }),
            make { 2, 3, dtype = "bf16" },
        } do
            lu.assertEquals({ t:size(), t:dtype() }, { { 2, 3 }, "bf16" }, name)
        end
        lu.assertEquals(make({ 2, 3 }):size(), { 2, 3 })
        lu.assertEquals(make({ shape = {} }):size(), {})
    end
    lu.assertEquals(mx.zeros({ 2 }, "i32"):totable(), { 0, 0 })
    lu.assertEquals(mx.ones({ shape = { 2 }, dtype = "u8" }):totable(), { 1, 1 })
    lu.assertEquals(mx.tensor({ 1, 2 }, { dtype = "i32" }):dtype(), "i32")
end

function TestConstructors.test_what_would_go_unread_is_refused()
    for _, name in ipairs { "zeros", "ones", "full", "randn", "rand" } do
        local make = mx[name]
        refused({ name, "'shap'", "'shape'" }, make, { shap = { 2, 3 } })
        refused({ name, "'dtpye'", "'dtype'" }, make, { shape = { 2 }, dtpye = "f32" })
        refused({ name, "twice" }, make, { 4, shape = { 2 } })
        refused({ "'shape'" }, make, { shape = { 2, shape = 3 } })
        refused({ name }, make, { 2 }, { dtype = "f32" }, "f32")
        refused({ "'dtpye'" }, make, { 2 }, { dtpye = "bf16" })
    end
    refused({ "'seed'" }, mx.randn, { 2, sede = 1 })
    refused({ "'dtype'" }, mx.tensor, { 1, 2, dtype = "i32" })
    refused({ "'seed'" }, mx.randn, { 2, seed = 1 }, { std = 2 }) -- options in both tables
    refused({ "(first, last, step)" }, mx.arange, 6, 7, 8, 9)
end

TestNames = {}

function TestNames.test_options_of_operations()
    local a = mx.ones { 2, 2 }
    refused({ "sum", "by name", "dim", "keepdim" }, a.sum, a, 1)
    refused({ "sum", "by name", "dim" }, a.sum, a, { 1 })
    refused({ "matmul", "true", "trans_a, trans_b" }, mx.matmul, a, a, true)
    refused({ "'axis'", "'dim'" }, mx.sum, a, { axis = 1 })
    refused({ "'learning_rate'", "'lr'" }, mx.sgd, a, a, { learning_rate = 1 })
    refused({ "softmax", "no tensor" }, mx.softmax, a, 1)
    refused({ "offset", "seed" }, mx.randn, { 2, offset = 1 })
end

function TestNames.test_options_in_lua()
    local params, a_image = { w = mx.ones({ 2 }):keep():requires_grad() }, mx.ones(1, 1, 2, 2)
    refused({ "'lr'", "'learning_rate'" }, mx.optim.adamw, params, { lr = 1 })
    refused({ "'weigth_decay'", "'weight_decay'" }, mx.optim.sgd, params, { weigth_decay = 1 })
    refused({ "'bais'", "'bias'" }, mx.nn.linear, {}, "a", 2, 2, { bais = true })
    refused({ "table", "bias" }, mx.nn.linear, {}, "a", 2, 2, true)
    refused({ "'peek'", "'peak'" }, mx.optim.schedule, { type = "cosine", peek = 1, steps = 2 })
    refused({ "type = linear", "cosine, wsd, constant", "any function" }, mx.optim.schedule,
        { type = "linear", peak = 1, steps = 2 })
    refused({ "decay_style = sqrt" }, mx.optim.schedule, { type = "wsd", peak = 1, steps = 2, decay_style = "sqrt" })
    refused({ "'peak'", "missing" }, mx.optim.schedule, { type = "cosine", steps = 2 })
    refused({ "'factor'", "; it has mode, scale, size" }, mx.interpolate, a_image, { factor = 2 })
    refused({ "'scale_factor'; it is scale here" }, mx.interpolate, a_image, { scale_factor = 2 })
    refused({ "'num_heads'; it is heads here" }, mx.nn.attention, {}, "a", 8, { num_heads = 2 })
    refused({ "'kernel_size'; the size is the argument before" }, mx.nn.conv2d, {}, "a", 1, 2, 3, { kernel_size = 3 })
    refused({ "'temprature'", "'temperature'" }, mx.generate.sample, { 1, 2 }, { temprature = 1, top_k = 0, top_p = 1 })
    refused({ "'param'", "'params'" }, mx.checkpoint.saver, { directory = "x", param = {} })
    refused({ "'debgu'", "'debug'" }, mx.comm_options, { debgu = true })
end

function TestNames.test_fields_of_optimizers()
    local optimizer = mx.optim.adamw({ w = mx.ones({ 2 }):keep():requires_grad() })
    refused({ "'lr'", "options.learning_rate" }, set, optimizer, "lr", 1)
    refused({ "'lr'", "options.learning_rate" }, get, optimizer, "lr")
    refused({ "'stpes'", "'steps'" }, set, optimizer, "stpes", 1)
    refused({ "'zero_grad'" }, get, optimizer, "zero_grads")
    refused({ "'lr'", "'learning_rate'" }, set, optimizer.options, "lr", 1)
    refused({ "'betta1'", "'beta1'" }, get, optimizer.options, "betta1")
    optimizer.options.learning_rate, optimizer.steps = 0.5, 3
    lu.assertEquals({ optimizer:rate(1), optimizer.steps, optimizer.parallel }, { 0.5, 3, mx.parallel.alone })
end

function TestNames.test_fields_of_other_objects()
    local mesh = mx.mesh.plan(mx.config.load { "model_name=tiny" }, 1)
    refused({ "mesh", "'sise'", "'size'" }, get, mesh, "sise")
    refused({ "mesh", "'rnak'", "'rank'" }, set, mesh, "rnak", 1)
    local tokenizer = mx.tokenizer.open("bytes")
    refused({ "tokenizer", "'vocabsize'", "'vocab_size'" }, get, tokenizer, "vocabsize")
    refused({ "tokenizer", "'eso'", "'eos'" }, set, tokenizer, "eso", 1)
    lu.assertNil(tokenizer.bos)
    local step <close> = mx.step()
    refused({ "step", "'clsoe'", "'close'" }, get, step, "clsoe")
    lu.assertFalse(pcall(set, step, "x", 1))
    local path = os.tmpname()
    local log <close> = mx.io.open_log(path)
    refused({ "mx.io.log", "'lien'", "'line'" }, get, log, "lien")
    lu.assertFalse(pcall(set, log, "x", 1))
    os.remove(path)
end

function TestNames.test_operations()
    refused({ "'sofmax'", "'softmax'" }, mx.op_info, "sofmax")
    local ops = mx.ops()
    lu.assertStrContains(tostring(ops), "matmul")
    lu.assertEquals(#ops, select(2, tostring(ops):gsub("%S+", "")))
end

function TestNames.test_a_nan_prints_without_a_sign()
    for _, x in ipairs { 0 / 0, -(0 / 0) } do
        local t = mx.tensor { x }
        lu.assertNil(tostring(t):find("-nan", 1, true))
        lu.assertNil(tostring(t:item()):find("-nan", 1, true))
        lu.assertNil(tostring(t[1]):find("-nan", 1, true))
    end
end
