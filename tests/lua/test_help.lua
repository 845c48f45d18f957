--- mx.help: every public name has an entry, every entry's name exists, and every example runs and gives what it says.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"
local help = require "mx.help"
local pages = require "mx.help.pages"

local function entries()
    local list = {}
    for _, section in ipairs(help.sections()) do
        table.move(section.entries, 1, #section.entries, #list + 1, list)
    end
    return list
end

local function path_of(name)
    local value = mx
    for part in name:gmatch("[^.]+") do
        value = value[part]
    end
    return value
end

local METHODS = debug.getregistry()["mx.tensor"].methods

-- Operations that scripts seldom call: gradients, sums into a tensor, steps of others, what mx.linalg calls.
local function is_internal(name)
    return name:find("_grad", 1, true) or name:find("_acc$") or name:find("^norm_") or name:find("^cross_entropy_")
        or name:find("^linalg_")
end

TestHelp = {}

function TestHelp.test_every_public_name_has_an_entry()
    local has = {}
    for _, entry in ipairs(entries()) do
        if not entry.elsewhere and (entry.code or is_internal(entry.name)) then
            has[entry.name] = true
        end
    end
    local lacking = {}
    local function check(prefix, list)
        for name in pairs(list) do
            if not has[prefix .. name] then
                lacking[#lacking + 1] = prefix .. name
            end
        end
    end
    check("", mx)
    check("", getmetatable(mx).modules)
    check("", getmetatable(mx).functions)
    check("", METHODS)
    for _, module in ipairs { "nn", "optim", "data", "linalg" } do
        check(module .. ".", mx[module])
    end
    table.sort(lacking)
    lu.assertEquals(lacking, {}, "without an entry and an example in lua/mx/help")
end

function TestHelp.test_every_entry_exists_once()
    local seen = {}
    for _, entry in ipairs(entries()) do
        lu.assertNil(seen[entry.call], entry.call)
        seen[entry.call] = true
        if entry.is_method then
            lu.assertNotNil(METHODS[entry.name], entry.name)
        elseif entry.name:find(":", 1, true) then -- a method of an object that the example makes
            lu.assertStrContains(entry.code, entry.name:match(":.*") .. "(")
        elseif not entry.is_topic then
            lu.assertNotNil(path_of(entry.name), entry.name)
        end
    end
end

-- A value as examples write it.
local function text_of(value)
    if type(value) == "userdata" then
        value = value:dim() == 0 and value:item() or value:totable()
    end
    if type(value) == "table" then
        local texts = {}
        for i, one in ipairs(value) do
            texts[i] = text_of(one)
        end
        return "{" .. table.concat(texts, ", ") .. "}"
    elseif type(value) == "number" then
        return ("%.4g"):format(value)
    end
    return tostring(value)
end

local function show(expected, ...)
    local texts = table.pack(...)
    for i = 1, math.max(texts.n, 1) do
        texts[i] = text_of(texts[i])
    end
    lu.assertEquals(table.concat(texts, ", "), expected)
end

function TestHelp.test_every_example_gives_what_it_says()
    local folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
    for _, entry in ipairs(entries()) do
        local lines = {}
        for line in (entry.code or ""):gmatch("[^\n]+") do
            local expression, value = line:match("^(.-) %-%-> (.*)$")
            if expression and not expression:find("^t%[.*%] = ") then
                line = ("show(%q, %s)"):format(value, expression)
            end
            lines[#lines + 1] = line
        end
        local code = table.concat(lines, "\n"):gsub("/tmp/", folder .. "/")
        local env = setmetatable({ mx = mx, show = show }, { __index = _G })
        local chunk, problem = load(code, "=" .. entry.call, "t", env)
        lu.assertNotNil(chunk, tostring(problem) .. "\n" .. code)
        local step <close> = mx.step()
        local ok, message = pcall(chunk)
        lu.assertTrue(ok, entry.call .. ": " .. (type(message) == "table" and tostring(message.msg or message)
            or tostring(message)))
    end
    mx.io.remove_folder(folder)
end

-- The classifier at the top of the page learns.
function TestHelp.test_the_example_of_the_page()
    local code, n = pages.from_pytorch():match("```lua\n(.-)```"):gsub('"model.h5"', "path")
    lu.assertEquals(n, 1)
    local path = os.tmpname()
    local step <close> = mx.step()
    mx.manual_seed(0)
    local run = load(code .. "return accuracy, params", "=page", "t", setmetatable({ path = path }, { __index = _G }))
    local accuracy, params = run()
    lu.assertTrue(accuracy > 0.9)
    mx.nn.load(params, path)
    os.remove(path)
end

function TestHelp.test_names_of_pytorch()
    for word, call in pairs {
        cat = "mx.concat(", unsqueeze = "t:unsqueeze", ["optim.Adam"] = "mx.optim.adamw",
        ["torch.no_grad"] = "mx.no_grad",
        state_dict = "mx.nn.state", einsum = "mx.einsum", ["nn.Linear"] = "mx.nn.linear",
        masked_fill = "mx.masked_fill",
        topk = "mx.topk",
        Adam = "mx.optim.adamw", DataLoader = "mx.data.dataset", step = "mx.step",
        backward = "mx.backward",
        nn = "mx.nn", tensor = "mx.tensor", profile = "mx.profile", plot = "mx.plot", ["F.cross_entropy"] =
            "mx.softmax_cross_entropy", ["Tensor.backward"] = "mx.backward", matmul_acc = "mx.matmul_acc",
        ["checkpoint.saver"] = "mx.checkpoint",
    } do
        local text = mx.help(word)
        lu.assertEquals(text:sub(1, #call), call, word)
    end
    lu.assertStrContains(mx.help "step", "optimizer:step")
end

function TestHelp.test_the_examples_that_texts_name_exist()
    local n = 0
    for _, entry in ipairs(entries()) do
        for path in entry.text:gmatch("scripts/examples/[%w_]+%.lua") do
            lu.assertStrContains(mx.read_file(mx.root .. path), "local mx = require")
            n = n + 1
        end
    end
    lu.assertTrue(n > 10)
    lu.assertStrContains(mx.help "PPO", "An example: scripts/examples/actor_critic.lua")
end

function TestHelp.test_misspelt_names()
    for word, near in pairs { matmull = "matmul", unsqeeze = "unsqueeze", ["nn.Liner"] = "nn.linear" } do
        local ok, message = pcall(mx.help, word)
        lu.assertFalse(ok)
        lu.assertStrContains(message, "'" .. word .. "'")
        lu.assertStrContains(message:lower(), "'" .. near .. "'")
    end
    checks.assert_raises({ "mx.help()" }, mx.help, "nothing like zebras")
    checks.assert_raises({ "a number" }, mx.help, 7)
end

function TestHelp.test_keys_of_configurations()
    for _, line in ipairs { "remat_policy: full", "learning_rate: 3.0e-5", "tuning: \"off\"" } do
        local name = line:match("^[^:]+")
        lu.assertEquals(mx.help(name):match("^[^(]+"), line .. " ", name)
    end
    lu.assertStrContains(mx.help "beta_slow", "yarn:") -- one comment for several keys
    lu.assertStrContains(mx.help "attention", "attention: autoselected (a key") -- also a function
    lu.assertStrContains(mx.help "opt_type", "adafactor is that of torch")
    lu.assertStrContains(mx.help "compile_topology", "| `compile_topology` | `hardware` |") -- of MaxText
end

function TestHelp.test_other_words_are_looked_up_in_the_texts()
    local text = mx.help "moving average"
    lu.assertStrContains(text, "mx.optim.ema")
    lu.assertNil(text:find("mx.matmul", 1, true))
    lu.assertStrContains(mx.help "gradients norm scale", "gradient_clipping_threshold=")
    local lines = select(2, mx.help("the x"):gsub("\n  %S", ""))
    lu.assertEquals(lines, 21) -- 20 and "and N more"
end

function TestHelp.test_the_overview_names_everything()
    local text = mx.help():gsub("%s+", " ")
    for _, entry in ipairs(entries()) do
        lu.assertTrue(entry.elsewhere ~= nil or text:find(entry.name, 1, true) ~= nil, entry.name)
    end
end

function TestHelp.test_the_pages_are_up_to_date()
    for _, name in ipairs { "reference", "from_pytorch" } do
        lu.assertTrue(pages[name]() == mx.read_file(mx.root .. "lua/" .. name .. ".md"),
            "run build/mxlua scripts/reference.lua")
    end
end
