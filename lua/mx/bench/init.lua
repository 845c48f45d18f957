--- The published benchmark with one chip's work per rank: a rank does a chip's arithmetic with that chip's matrix
--- shapes.
--
-- The published job shards weights over 256 chips and gathers them layer by layer. So a chip computes with whole
-- matrices (128B: with 1/16 of heads, mlp and vocabulary) and updates only its own shard of the parameters. The ranks
-- form a mesh with the same axes, as large as the number of ranks allows, and communicate among themselves as the chips
-- do. If this machine cannot hold the job or finish it in time, layers and tokens are cut, but never a matrix. The
-- banner says what was cut.

local mx = require "mx"
local remat = require "mx.models.remat"
local util = require "mx.util"

local bench = {}

local MEMORY_SHARE = 0.8 -- share of the machine's memory that all ranks on it may plan for
local TIME_SHARE = 0.85 -- share of bench_seconds that steps may take
local MIN_STEPS, MAX_STEPS = 4, 30 -- the first step is warm-up
local MIN_LENGTH = 256 -- shorter sequences would starve the matrix products
local NO_LIMIT = 2 ^ 60 -- bytes

local say = mx.metrics.say

-- ---- the published job ----

-- The published job on one slice.
local function published_cell(name, published)
    for _, cell in ipairs(published.cells) do
        if cell.model == name and cell.slices == 1 then
            return cell
        end
    end
end

--- How the published job's mesh splits a model over the chips of a slice. A chip has 1/tensor of heads, mlp and
--- vocabulary, and updates 1/fsdp of the parameters that it has.
---@param name string a model of configs/published/v5e.yml
---@return {fsdp: integer, tensor: integer}
function bench.job(name)
    local published = mx.repro.published("v5e")
    local mesh = published.meshes[name] or {}
    local tensor = mesh.ici_tensor_parallelism or 1
    return { tensor = tensor, fsdp = mesh.ici_fsdp_parallelism or published_cell(name, published).chips // tensor }
end

-- The number of ranks along tensor and along fsdp: both axes if the job has both, otherwise fsdp only.
local function default_mesh(job, ranks)
    local tensor = 1
    if job.tensor > 1 then
        while ranks % tensor ~= 0 or tensor * tensor < ranks do
            tensor = tensor + 1
        end
    end
    return ranks // tensor, tensor
end

-- Keys that the user may set: those of the benchmark, the mesh and communication. The job determines all others.
local WORDS = {
    "^bench_seconds$", "^era$", "^remat_policy$", "^metrics_file$", "^trace_file$", "^report_file$",
    "^skip_first_n_steps_for_profiler$", "^profiler_steps$", "^ici_fsdp_parallelism$", "^ici_tensor_parallelism$",
    "^async_", "_threshold_bytes$", "^prefetch_", "^debug_collectives$", "^collective_timeout_s$",
    "^offload_directory$",
}
for _, name in ipairs(remat.TENSORS) do
    WORDS[#WORDS + 1] = "^" .. name .. "$"
end

local function load_config(name, published, words)
    local given, all = {}, { "model_name=" .. name }
    for _, word in ipairs(words) do
        local key, known = word:match("^([%w_]+)="), false
        for _, pattern in ipairs(WORDS) do
            known = known or (key and key:find(pattern)) and true
        end
        if not known then
            util.refuse("'%s' on the command line: expected bench_seconds, era, remat_policy and the keys of memory, "
                .. "metrics_file, trace_file, report_file, skip_first_n_steps_for_profiler, profiler_steps, "
                .. "ici_fsdp_parallelism, ici_tensor_parallelism, or a key of communication in configs/base.yml", word)
        end
        given[key], all[#all + 1] = true, word
    end
    if not given.remat_policy then
        all[#all + 1] = "remat_policy=full"
    end
    if not given.ici_fsdp_parallelism and not given.ici_tensor_parallelism then
        local fsdp, tensor = default_mesh(bench.job(name), mx.ranks())
        all[#all + 1] = "ici_fsdp_parallelism=" .. fsdp
        all[#all + 1] = "ici_tensor_parallelism=" .. tensor
    end
    if util.contains(all, "era=b") then
        for key, value in util.sorted_pairs(published.era_b.settings) do
            all[#all + 1] = ("%s=%s"):format(key, value)
        end
    end
    return mx.config.load(all, { options = { bench_seconds = 60.0, era = "a" } })
end

-- Checks that the ranks along each axis divide the job's chips along it: a rank stands for several chips.
local function check_mesh(name, mesh)
    for _, axis in ipairs({ "fsdp", "tensor" }) do
        local ranks, chips = mesh:size(axis), bench.job(name)[axis]
        if chips % ranks ~= 0 then
            util.refuse("ici_%s_parallelism: %d ranks along %s, where the %s job has %d: expected a divisor", axis,
                ranks, axis, name, chips)
        end
    end
end

-- A copy of the model with its heads, MLPs and vocabulary changed by fn.
local function resized(shape, fn)
    local other = mx.models.copy(shape)
    other.vocab = fn(shape.vocab)
    for _, block in ipairs(other.blocks) do
        local attention, mlp = block.attention, block.mlp
        attention.heads, attention.kv_heads = fn(attention.heads), fn(attention.kv_heads)
        mlp.width = fn(mlp.width)
    end
    return other
end

-- The model of several such chips along tensor together.
local function ranks_shape(chip, tensor)
    return resized(chip, function(n) return n * tensor end)
end

--- The part of a model that one chip of its published job computes with.
---@param name string 16b, 32b, 64b or 128b
---@param shape table of mx.models.shape
---@return table
function bench.chip_shape(name, shape)
    local job = bench.job(name)
    local chip = resized(shape, function(n) return n // job.tensor end)
    chip.weight_dtype = "bf16" -- weights are gathered and used in bf16; the f32 weights are sharded
    return chip
end

-- ---- the step ----

-- AdamW on this chip's shard of each parameter: f32 master values and moments of the first 1/fsdp of its elements. The
-- same pass writes the bf16 weights from them. `fsdp` is the job's, divided by the mesh's, which has already split
-- them.
local function new_shards(params, fsdp)
    local shards = {}
    for name, t in util.sorted_pairs(params) do
        local length = (t:numel() + fsdp - 1) // fsdp
        local weights = mx.narrow(t:detach():view(t:numel()), { dim = 1, start = 1, length = length }):keep()
        shards[name] = {
            length = length, weights = weights, master = mx.cast(weights, { dtype = "f32" }):keep(),
            m = mx.zeros({ length }):keep(), v = mx.zeros({ length }):keep(),
        }
    end
    return shards
end

-- Update number `count`; returns the norm of the shards of the gradients that these ranks update. Collective.
local function update_shards(model, shards, count, config)
    local step <close> = mx.step()
    local params, grads = model.params, {}
    for name, t in util.sorted_pairs(params) do
        local grad = t:grad()
        if grad then
            grads[name] = mx.narrow(grad:view(grad:numel()), { dim = 1, start = 1, length = shards[name].length })
        end
    end
    local norm = mx.optim.norm(grads, model.parallel)
    for name, grad in util.sorted_pairs(grads) do
        local shard = shards[name]
        mx.adamw(shard.master, grad, shard.m, shard.v, shard.weights, {
            lr = config.learning_rate, beta1 = config.adam_b1, beta2 = config.adam_b2, eps = config.adam_eps,
            weight_decay = config.adam_weight_decay, step = count,
            grad_scale = math.min(1, config.gradient_clipping_threshold / math.max(norm, 1e-30)),
        })
        local whole = params[name]:grad()
        params[name]:zero_grad()
        whole:release()
    end
    return norm
end

-- The mesh of this process, real or simulated. Collective.
local function new_mesh(config)
    return mx.train.mesh(config) or mx.mesh.plan(config, 1)
end

-- The model and its shards, for the chips that a rank and its neighbours along tensor stand for.
local function set_up(config, chip, job, mesh)
    local model = mx.models.new(ranks_shape(chip, mesh:size("tensor")), mesh, config)
    model.parallel:add_gradients(model.params, true)
    return model, new_shards(model.params, job.fsdp // mesh:size("fsdp"))
end

-- The batch of a rank, the same in all steps. Ranks along tensor read the same sequences.
local function random_batch(mesh, vocab, sequences, length)
    local part = mesh:index(mesh.rules.activation_batch)
    local function random_tokens(seed)
        return mx.rand { shape = { sequences, length }, high = vocab, seed = 2 * part + seed }:to("i32")
    end
    return { tokens = random_tokens(0), targets = random_tokens(1) }
end

-- One step; returns loss and gradient norm. Collective.
local function step_of(model, shards, batch, count, config)
    local loss = mx.scope(function()
        local value = model:loss(batch)
        mx.backward(value, model.parallel.seed)
        return mx.train.average(value:item())
    end)
    return loss, update_shards(model, shards, count, config)
end

-- ---- what fits ----

--- What a step of the benchmark needs on a rank, by simulating it on this machine.
---@param config table
---@param chip table the part of the model that one chip computes with
---@param job {fsdp: integer, tensor: integer}
---@param hardware table of mx.host.hardware: this machine with as many ranks
---@return fun(layers: integer, sequences: integer, length: integer): number, number bytes and seconds
function bench.needs(config, chip, job, hardware)
    local function simulate(layers, sequences, length)
        local mesh = new_mesh(config)
        local model, shards = set_up(config, mx.models.cut(chip, layers), job, mesh)
        local batch = random_batch(mesh, model.shape.vocab, sequences, length)
        local start
        for count = 1, 2 do -- the second is like all later ones
            start = mx.now()
            step_of(model, shards, batch, count, config)
        end
        return mx.memory().peak, mx.now() - start
    end
    return function(...)
        mx.sim.start(hardware, 1, { memory_bytes = NO_LIMIT })
        mx.reset_peak()
        local ok, bytes, seconds = pcall(simulate, ...)
        mx.sim.stop()
        if not ok then
            error(bytes, 0)
        end
        return bytes, seconds
    end
end

-- The largest n from `least` to `most` for which fits(n), or `least`. What a step needs grows with n.
local function largest_that(fits, least, most)
    while least < most do
        local middle = (least + most + 1) // 2
        if fits(middle) then
            least = middle
        else
            most = middle - 1
        end
    end
    return least
end

--- The largest run that fits memory and time. Sequence length has priority, then layers, then sequences.
---@param needs fun(layers: integer, sequences: integer, length: integer): number, number bytes and seconds of a step
---@param full {layers: integer, least_layers: integer, length: integer, sequences: integer} of the published job, for
---       the chips that share these tokens; least_layers: one of each kind
---@param limits {memory: number, seconds: number} bytes of a rank, seconds of the run
---@return {layers: integer, sequences: integer, length: integer, steps: integer, seconds: number, bytes: number}
function bench.plan(needs, full, limits)
    local least = full.least_layers
    local plan = { length = full.length }
    local function fits(layers, sequences, steps)
        local bytes, seconds = needs(layers, sequences, plan.length)
        return bytes <= limits.memory and seconds * steps <= limits.seconds
    end
    while plan.length > MIN_LENGTH and not fits(least, 1, MIN_STEPS) do
        plan.length = plan.length // 2
    end
    plan.layers = largest_that(function(n) return fits(n, 1, MIN_STEPS + 2) end, least, full.layers)
    plan.sequences = largest_that(function(n) return fits(plan.layers, n, MIN_STEPS + 2) end, 1, full.sequences)
    plan.bytes, plan.seconds = needs(plan.layers, plan.sequences, plan.length)
    plan.steps = math.floor(math.max(MIN_STEPS, math.min(MAX_STEPS, limits.seconds // plan.seconds)))
    if plan.bytes > limits.memory then
        local layers = least == 1 and "one layer" or ("a layer of each of %d kinds"):format(least)
        util.refuse("%s needs %.1f GiB and a rank may have %.1f GiB here: use fewer ranks", layers,
            plan.bytes / 2 ^ 30, limits.memory / 2 ^ 30)
    end
    return plan
end

-- ---- the run ----

local function print_plan(name, params, shape, chip, plan, full, mesh)
    local job = bench.job(name)
    local part = job.tensor > 1 and ("1/%d of heads, mlp and vocabulary"):format(job.tensor) or "whole matrices"
    local function cut(what, from, to)
        return from == to and ("%s %d"):format(what, from) or ("%s %d instead of %d"):format(what, to, from)
    end
    local function share(layers)
        local with = mx.models.cut(chip, layers)
        local vocabulary = 2 * chip.emb * chip.vocab * plan.length
        return 100 * vocabulary / (vocabulary + mx.flops.layers_forward(with, 1, plan.length))
    end
    local ranks, attention, mlp = mx.ranks(), shape.blocks[1].attention, shape.blocks[1].mlp
    say("  job        %s on v5e-256: fsdp=%d, tensor=%d; a rank stands for a chip", name, job.fsdp, job.tensor)
    say("  checked    %s parameters, as in the job:", util.thousands(params))
    say("             emb %d, %d heads of %d, mlp %d, %d layers, vocabulary %d", shape.emb, attention.heads,
        attention.head_dim, mlp.width, shape.layers, shape.vocab)
    say("  this chip  %s;", part)
    say("             all %d of emb, 1/%d of the optimizer", chip.emb, job.fsdp * job.tensor)
    say("  cut        %s, %s,", cut("layers", chip.layers, plan.layers),
        cut("sequences", full.sequences, plan.sequences))
    say("             %s, %s", cut("sequence length", full.length, plan.length), cut("chips", 256, ranks))
    if ranks == 1 then
        say("  left out   traffic between chips: nothing is gathered, scattered or added")
    else
        say("  mesh       %s; traffic among these only", mesh:summary())
    end
    say("  so         the vocabulary is %.1f %% of the FLOPs, %.1f %% with all layers", share(plan.layers),
        share(chip.layers))
    say("  settings   remat_policy %s; bf16 weights and compute, f32 gradients", chip.remat_policy)
    say("             and optimizer; random tokens")
    say("  plan       %d steps of about %s; %.1f GiB and %d thread%s for each rank", plan.steps,
        util.duration(plan.seconds), plan.bytes / 2 ^ 30, mx.threads(), mx.threads() == 1 and "" or "s")
end

local function run_steps(config, model, shards, plan, report, mesh)
    local batch = random_batch(mesh, model.shape.vocab, plan.sequences, plan.length)
    for step = 1, plan.steps do
        local loss, norm = step_of(model, shards, batch, step, config)
        if loss - loss ~= 0 or norm - norm ~= 0 then
            util.refuse("step %d: the loss is %g and the gradient norm %g at a learning rate of %g", step, loss, norm,
                config.learning_rate)
        end
        report:step(step, { loss = loss, grad_norm = norm, learning_rate = config.learning_rate })
    end
    return report:finish()
end

-- Gives every rank the plan of rank 0. Collective.
local function agree(plan)
    return mx.io.json_decode(mx.share_text(mx.io.json_encode(plan)))
end

--- The published, simulated and measured MFU as lines. They can be compared only as shares of their own peaks.
---@param published table of mx.repro.published
---@param cell table its row
---@param simulated table of mx.repro.simulate, with a range
---@param summary table of mx.Metrics:finish
---@param era string
---@return string[]
function bench.figures(published, cell, simulated, summary, era)
    local row, lines = "  %-10s %6s %9s  %s", {}
    local function add(...)
        lines[#lines + 1] = row:format(...)
    end
    local function number(format, value)
        return value and format:format(value) or "-"
    end
    add("", "MFU %", "TFLOP/s", "of what, and how its FLOPs were counted")
    add("published", number("%.2f", cell.mfu), number("%.1f", cell.tflops),
        ("%s TFLOP/s, %d chips of %s (%s)"):format(published.peak_tflops, cell.chips, published.hardware,
            published.flop_formula))
    add("simulated", number("%.2f", simulated.mfu), number("%.1f", simulated.tflops),
        ("%s TFLOP/s, the same%s (%s)"):format(published.peak_tflops, era == "b" and ", another model" or "",
            simulated.formula))
    add("", "", "", ("a step takes %.4g s%s: MFU %.1f to %.1f"):format(simulated.step_s,
        mx.sim.label.range_text(simulated.step_s, simulated.range), simulated.mfu / simulated.range[2],
        simulated.mfu / simulated.range[1]))
    add("this host", number("%.2f", summary.mfu), number("%.4f", summary.tflops_per_device),
        ("%s TFLOP/s, measured (%s)"):format(number("%.4f", summary.peak_tflops), summary.flop_formula))
    return lines
end

-- The columns of a report beside this host's.
local function beside(published, cell, simulated)
    local peak = published.peak_tflops
    local source = ("%d chips of %s"):format(cell.chips, published.hardware)
    return {
        {
            title = "published", mfu = cell.mfu, tflops_per_device = cell.tflops, peak_tflops = peak,
            peak_source = source, flop_formula = published.flop_formula,
        },
        {
            title = "simulated", mfu = simulated.mfu, tflops_per_device = simulated.tflops, peak_tflops = peak,
            peak_source = source, flop_formula = simulated.formula, step_time_s = simulated.step_s,
            peak_memory_bytes = simulated.peak_memory_bytes,
        },
    }
end

--- Runs the benchmark of one published model. Collective.
---@param name string 16b, 32b, 64b or 128b
---@param words string[] bench_seconds (about how long it takes), era (b: today's model of that name), remat_policy,
---       metrics_file, and keys of mesh and communication
---@return table summary
function bench.run(name, words)
    local published = mx.repro.published("v5e")
    local config, cell = load_config(name, published, words), published_cell(name, published)
    local simulated = mx.repro.simulate(published, cell, { era = config.era, range = true }) -- checks parameters, too
    check_mesh(name, mx.mesh.plan(config, mx.ranks()))
    local job, shape = bench.job(name), mx.models.shape(config)
    local chip = bench.chip_shape(name, shape)
    say("bench_%s: this host at the work of one chip of the published job", name)
    local peak = mx.metrics.measured_peak(chip.dtype)
    local info = mx.info()
    mx.barrier() -- so that all ranks are busy while each measures its rates
    local hardware = mx.host.hardware(mx.ranks())
    local full = {
        length = config.max_target_length, sequences = config.per_device_batch_size * job.tensor, layers = chip.layers,
        least_layers = #mx.models.kinds(chip),
    }
    local plan = agree(bench.plan(bench.needs(config, chip, job, hardware), full, {
        memory = info.memory_bytes / info.node_ranks * MEMORY_SHARE,
        seconds = config.bench_seconds * TIME_SHARE,
    }))
    local mesh = new_mesh(config)
    print_plan(name, mx.models.count(shape), shape, chip, plan, full, mesh)

    chip = mx.models.cut(chip, plan.layers)
    local params = mx.models.count(chip)
    say("  setting up %s parameters ...", util.thousands(params))
    local model, shards = set_up(config, chip, job, mesh)
    local report = mx.metrics.new {
        steps = plan.steps,
        flops = mx.flops.step(config.flop_formula, chip, params, plan.sequences, plan.length),
        tokens = plan.sequences * plan.length / job.tensor, -- the chips of a group share its tokens
        params = params, formula = config.flop_formula, peak = peak, dtype = chip.dtype,
        file = config.metrics_file, period = 1, warmup = 1, config = config,
        beside = beside(published, cell, simulated),
        extra = {
            bench = name, host = "this host", published_params = mx.models.count(shape), layers = plan.layers,
            sequences = plan.sequences, length = plan.length, remat_policy = chip.remat_policy, era = config.era,
            fsdp = mesh:size("fsdp"), tensor = mesh:size("tensor"), published_mfu = cell.mfu,
            simulated_mfu = simulated.mfu, simulated_step_range = simulated.range,
        },
    }
    local summary = run_steps(config, model, shards, plan, report, mesh)
    for _, line in ipairs(bench.figures(published, cell, simulated, summary, config.era)) do
        say("%s", line)
    end
    mx.sim.label.say(mx.sim.hardware(mx.sim.split_name(published.hardware)), mx.sim.label.job(config))
    return summary
end

return bench
