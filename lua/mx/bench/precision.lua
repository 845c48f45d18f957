--- Trains the same small model under every recipe of quantization and compares loss, rounding and speed with bf16.
--
-- All models start from the same weights and see the same batches of bytes of a text, in turn: step by step, so that
-- what else the machine does slows all of them. "loss" is the mean of the last tenth of the steps. "times" is the time
-- of a step over that of bf16: the median of the steps. "saturated" is the share of codes at the end of their range,
-- "flushed" the share of values other than 0 whose code is 0: of inputs, weights and gradients, in the last step.

local mx = require "mx"
local quantization = require "mx.models.quantization"
local util = require "mx.util"

local precision = {}

local say = mx.metrics.say
local OPTIONS = { recipes = "", text = "", chart = "", metrics_file = "" }

-- The script's own options, and the words that are left for the config.
local function split(words)
    local own, rest = {}, { "model_name=tiny", "steps=300", "dataset_type=synthetic" }
    for _, word in ipairs(words) do
        local list = OPTIONS[word:match("^([%w_]+)=") or ""] and own or rest
        list[#list + 1] = word
    end
    return mx.config.options(own, OPTIONS), rest
end

local function recipes_of(text)
    if text == "" then
        return quantization.CHOICES
    end
    local list = { "" } -- bf16 first
    for name in text:gmatch("[^,]+") do
        if not quantization.RECIPES[name] then
            util.refuse("recipes=%s: no recipe is called '%s'; there are %s", text, name,
                table.concat(util.sorted_keys(quantization.RECIPES), ", "))
        end
        list[#list + 1] = name
    end
    return list
end

local function read(path)
    local file = io.open(path, "rb") or util.refuse("text=%s: cannot be read", path)
    local text = file:read("a")
    file:close()
    return text
end

-- B windows of S bytes and the bytes that follow them.
local function batch_of(text, c, step)
    local B, S = math.tointeger(c.per_device_batch_size) or 1, c.max_target_length
    if #text < S + 1 then
        util.refuse("the text has %d bytes: expected more than max_target_length = %d", #text, S)
    end
    local starts = mx.randint({ shape = { B }, low = 1, high = #text - S + 1, seed = step, dtype = "i64" }):totable()
    local tokens, targets = {}, {}
    for b, first in ipairs(starts) do
        local bytes = {}
        for at = first, first + S, 128 do
            table.move({ text:byte(at, math.min(at + 127, first + S)) }, 1, 128, #bytes + 1, bytes)
        end
        tokens[b], targets[b] = table.move(bytes, 1, S, 1, {}), table.move(bytes, 2, S + 1, 1, {})
    end
    return { tokens = mx.tensor(tokens, "i32"), targets = mx.tensor(targets, "i32") }
end

-- Counts codes at the end of their range, and codes of 0 of other values.
local function counter()
    local function none()
        return { input = 0, weight = 0, gradient = 0 }
    end
    local counts = { saturated = none(), flushed = none(), all = none() }
    return counts, function(kind, x, codes, most)
        mx.no_grad(mx.scope, function()
            local size, values = codes:detach():to("f32"):abs(), x:detach():to("f32")
            local function add(list, mask)
                list[kind] = list[kind] + mask:to("f32"):sum():item()
            end
            add(counts.saturated, size:ge(math.floor(most)))
            add(counts.flushed, size:eq(0) * values:ne(0))
            counts.all[kind] = counts.all[kind] + codes:numel()
        end)
    end
end

local function train(run, batch, watched)
    local start = mx.now()
    quantization.watch = watched
    local ok, loss = pcall(mx.scope, function()
        local loss = run.model:loss(batch)
        mx.backward(loss)
        run.optimizer:step()
        run.model:after_step()
        return loss:item()
    end)
    quantization.watch = nil
    if not ok then
        error(loss, 0)
    end
    run.losses[#run.losses + 1], run.seconds[#run.seconds + 1] = loss, mx.now() - start
end

local function shares(run, name)
    local function share(kind)
        local all = run.counts.all[kind]
        return all > 0 and ("%.2g"):format(100 * run.counts[name][kind] / all) or "-"
    end
    return table.concat({ share("input"), share("weight"), share("gradient") }, " ")
end

local function mean_of_last(losses)
    local n, sum = math.max(1, #losses // 10), 0
    for i = #losses - n + 1, #losses do
        sum = sum + losses[i]
    end
    return sum / n
end

local function print_rows(runs, log)
    say("%-22s %8s %9s %6s %24s %24s", "quantization", "loss", "of bf16", "times", "saturated % x, w, dy",
        "flushed % x, w, dy")
    for _, run in ipairs(runs) do
        local loss, first = mean_of_last(run.losses), mean_of_last(runs[1].losses)
        local ratios = {}
        for i, seconds in ipairs(run.seconds) do
            ratios[i] = seconds / runs[1].seconds[i]
        end
        run.loss, run.times = loss, util.quantile(ratios, 0.5)
        say("%-22s %8.4f %+7.2f %% %6.2f %24s %24s", run.recipe == "" and "none: bf16" or run.recipe, loss,
            100 * (loss / first - 1), run.times, shares(run, "saturated"), shares(run, "flushed"))
        if log then
            log:row { quantization = run.recipe, loss = loss, loss_ratio = loss / first, time_ratio = run.times }
        end
    end
end

local function draw(runs, file)
    local series = {}
    for i, run in ipairs(runs) do
        series[i] = { name = run.recipe == "" and "bf16" or run.recipe, y = run.losses, dashed = i == 1 }
    end
    mx.plot { file = file, title = "Loss under each recipe of quantization", x_label = "step", y_label = "loss",
        series = series }
    say("%s: the losses as lines", file)
end

--- Trains, prints the table, and returns its rows: recipe, losses, seconds (of each step), loss, times. Not collective:
--- for one rank.
---@param words string[] recipes, text, chart, metrics_file, and words of a config
---@return table[]
function precision.run(words)
    if mx.ranks() > 1 then
        util.refuse("precision.lua compares on one rank; start it without mpirun")
    end
    local o, rest = split(words)
    local here = debug.getinfo(1, "S").source:match("^@(.*)mx/bench/") or "lua/"
    local text = read(o.text ~= "" and o.text or here .. "reference.md")
    local runs, steps = {}, 0
    for i, recipe in ipairs(recipes_of(o.recipes)) do
        local config = mx.config.load(table.move({ "quantization=" .. recipe }, 1, 1, #rest + 1,
            table.move(rest, 1, #rest, 1, {})))
        local model, counts, watch = mx.models.new(config), counter()
        runs[i] = {
            recipe = recipe, config = config, model = model, optimizer = mx.optim.new(config, model.params),
            losses = {}, seconds = {}, counts = counts, watch = watch,
        }
        steps = config.steps
    end
    say("%s: %s parameters, %d steps of %s x %d bytes", runs[1].config.model_name,
        util.thousands(mx.models.count(runs[1].model.shape)), steps, runs[1].config.per_device_batch_size,
        runs[1].config.max_target_length)
    for i = 1, steps do
        local step <close> = mx.step()
        local batch = batch_of(text, runs[1].config, i)
        for _, run in ipairs(runs) do
            train(run, batch, i == steps and run.watch or nil)
        end
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    print_rows(runs, log)
    if log then
        log:close()
    end
    if o.chart ~= "" then
        draw(runs, o.chart)
    end
    return runs
end

return precision
