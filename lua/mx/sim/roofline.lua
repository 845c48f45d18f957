--- Shows which parallelism suits a model: the FLOPs of a device for each byte that it sends, compared with the
--- hardware.
--
-- Collectives can overlap completely with the computation that belongs to them if FLOPs / bytes (their arithmetic
-- intensity) exceeds peak / link bandwidth. configs/hardware has these figures, collectives.lua the formulas. An
-- operation is compute-bound if its FLOPs / bytes exceed peak / memory bandwidth.

local collectives = require "mx.sim.collectives"
local experts = require "mx.sim.experts"
local mx = require "mx"
local picture = require "mx.parallel.mesh_picture"
local util = require "mx.util"

local roofline = {}

local ROW = "%-15s %4s %3s %9s %7s %9s %7s %s"

--- The peak and the link bandwidths of a config's hardware (v5e by default), or those that the user has given. A device
--- is what a rank stands for: on v7x, a die.
---@param cfg table config with the options of roofline.run
---@return {name: string, peak: number, ici: number, dcn: number, memory: number} FLOP/s of bfloat16; B/s over one axis
---        of the torus, both directions together, or one way into a switch; B/s to other slices; B/s of the memory
function roofline.machine(cfg)
    local hardware = mx.sim.hardware(cfg.hardware ~= "" and cfg.hardware or "v5e")
    local dies = (hardware.dies or 1) > 1 and " (dies)" or ""
    local given = cfg.peak_tflops > 0 and cfg.link_gbps > 0
    return {
        name = given and "devices" or hardware.name .. dies,
        peak = cfg.peak_tflops > 0 and cfg.peak_tflops * 1e12 or hardware.peak_flops.bfloat16,
        ici = cfg.link_gbps > 0 and cfg.link_gbps * 1e9 or hardware.torus_dims > 0 and 2 * hardware.link_Bps
            or hardware.switch_Bps,
        dcn = cfg.dcn_gbps > 0 and cfg.dcn_gbps * 1e9 or hardware.dcn_Bps,
        memory = hardware.memory_Bps,
    }
end

--- The number of ranks of the planned mesh: as given; otherwise all devices of the slices that `hardware` names;
--- otherwise the ranks of this run.
---@param cfg table config with the options of roofline.run
---@return integer
function roofline.ranks(cfg)
    local counted = cfg.hardware:find("%-%d+$")
    local all = counted and mx.sim.pod(cfg.hardware, cfg.num_slices).network.slice_chips * cfg.num_slices
    if all and cfg.ranks > 0 and cfg.ranks ~= all then
        util.refuse("ranks=%d: hardware=%s with num_slices=%d has %d devices; leave ranks out, or the number of chips",
            cfg.ranks, cfg.hardware, cfg.num_slices, all)
    end
    return cfg.ranks > 0 and cfg.ranks or all or mx.ranks()
end

---@class mx.RooflineRow
---@field axis string
---@field size integer size of the axis at this level
---@field level string ici or dcn
---@field what string
---@field bytes number bytes that a device sends in a step
---@field flops number FLOPs of a device in a step that may overlap with them
---@field intensity number FLOPs / bytes
---@field needed number FLOPs / byte that the hardware needs
---@field compute_bound boolean

local function row_of(found, machine)
    local intensity, needed = found.flops / found.bytes, machine.peak / machine[found.level]
    return {
        axis = found.axis, size = found.size, level = found.level, what = found.what, bytes = found.bytes,
        flops = found.flops, intensity = intensity, needed = needed, compute_bound = intensity > needed,
    }
end

--- The collectives of a mesh, in mesh order; and those that each axis of size 1 would add if it had size 2, which
--- context_usp_ulysses has with context_parallel_strategy=usp only.
---@param cfg table config
---@param plan mx.Mesh of mx.mesh.plan
---@param machine table of roofline.machine
---@param shape? table the model, if it differs from the config's
---@return mx.RooflineRow[] used, mx.RooflineRow[] unused
function roofline.rows(cfg, plan, machine, shape)
    local used, unused = {}, {}
    shape = shape or mx.models.shape(cfg)
    local ici, dcn = plan.layout.ici, plan.layout.dcn
    local all = collectives.of(cfg, shape, plan, ici, dcn)
    for _, axis in ipairs(mx.mesh.AXES) do
        local is_used = ici[axis] * dcn[axis] > 1
        local is_possible = axis ~= "context_usp_ulysses" or cfg.context_parallel_strategy == "usp"
        local with_two = not is_used and is_possible and setmetatable({ [axis] = 2 }, { __index = ici })
        for _, found in ipairs(is_used and all or with_two and collectives.of(cfg, shape, plan, with_two, dcn) or {}) do
            local list = is_used and used or unused
            list[#list + 1] = found.axis == axis and row_of(found, machine) or nil
        end
    end
    return used, unused
end

-- ---- advice ----

-- The least value of fn(block) over all layers.
local function least(shape, fn)
    local found = math.huge
    for _, kind in ipairs(mx.models.kinds(shape)) do
        found = math.min(found, fn(kind.block))
    end
    return found
end

local function least_kv_heads(shape)
    return least(shape, function(block) return block.attention.kv_heads end)
end

--- The largest number of equal parts into which heads can be split so that a product over `inputs` (mlp, or the width
--- of all heads) takes as long as the sum of its results: 2 B (inputs / parts) E FLOPs on 2 B E bytes. 1 if there is
--- none. This is the tightest of the collectives of a part, and the rule of MaxText's sharding guide.
---@param shape table of mx.models.shape
---@param inputs integer
---@param needed number FLOPs / byte of the hardware
---@return integer
function roofline.tensor_limit(shape, inputs, needed)
    for parts = least_kv_heads(shape), 2, -1 do
        if inputs / parts > needed and mx.models.divides(shape, parts) then
            return parts
        end
    end
    return 1
end

--- The smallest number of tokens per device for which gathering weights is compute-bound.
---@param needed number FLOPs / byte of the hardware
---@param share integer number of devices with the same tokens
---@param width integer bytes of a weight
---@param idle? number gathered weights of layers for each one that a token meets (default: 1)
---@return integer
function roofline.least_tokens(needed, share, width, idle)
    return math.floor(needed * width / 2 / share * (idle or 1)) + 1
end

--- Weights of layers that a device gathers, for each one that a token meets: 1 without experts. Devices that have
--- different experts gather fewer, and compute the tokens of all of them.
---@param shape table of mx.models.shape
---@param ranks integer that have different experts
---@return number
function roofline.gathered_for_met(shape, ranks)
    local met, gathered = 0, 0
    for _, kind in ipairs(mx.models.kinds(shape)) do
        for _, part in ipairs(mx.models.parts(kind.block)) do
            local count = mx.models.part(part).flops(part, shape, 1)
            local idle, n, top = count.idle or 0, part.experts, part.top
            met = met + kind.count * count.products
            -- Of n experts, n / ranks are gathered, and `top` are met: `idle` counts the other n - top.
            local more = idle > 0 and idle * (n / ranks - top) / (n - top) or 0
            gathered = gathered + kind.count * (count.products + more)
        end
    end
    return gathered / met
end

-- The features that a token meets between the products of an MLP, or of its experts.
local function width_of(mlp)
    return mlp.width * ((mlp.top or 1) + (mlp.shared or 0))
end

local function tensor_advice(shape, needed)
    local width = least(shape, function(block) return width_of(block.mlp) end)
    local limit, mlp = roofline.tensor_limit(shape, width, needed), util.thousands(width)
    local attention = roofline.tensor_limit(shape, least(shape, function(block)
        return block.attention.heads * block.attention.value_dim
    end), needed)
    if limit == 1 and width / 2 > needed then
        return ("No tensor axis divides both %d heads and %d kv_heads."):format(
            least(shape, function(block) return block.attention.heads end), least_kv_heads(shape))
    elseif limit == 1 then
        return ("No tensor axis hides the sum after the last product of the MLP inside a slice: mlp %s / 2 is at most "
            .. "%s."):format(mlp, util.thousands(needed))
    end
    return ("Inside a slice, tensor axes of up to %d together hide the sum after the last product of the MLP (mlp %s / "
        .. "%d = %s); %s that of attention."):format(limit, mlp, limit, util.thousands(width / limit),
        attention > 1 and ("%d hide"):format(attention) or "none hides")
end

local function advice(cfg, shape, plan, machine)
    local needed = machine.peak / machine.ici
    local share = plan.layout.ranks // plan:size(util.sorted_keys(plan.shares_batch))
    local idle = roofline.gathered_for_met(shape, plan:size(plan.rules.activation_exp))
    local enough = roofline.least_tokens(needed, share, mx.dtypes[shape.dtype].bytes, idle)
    local tokens = cfg.per_device_batch_size * cfg.max_target_length
    local shared = share > 1 and (" (%d devices share theirs)"):format(share) or ""
    return ("%s fsdp needs at least %s tokens a device%s; here are %s%s."):format(tensor_advice(shape, needed),
        util.thousands(enough), shared, util.thousands(tokens), tokens < enough and ", too few" or "")
end

-- ---- the operations ----

--- The operations of a step on one device, by name and shapes of their inputs, sorted by their time at the roofline,
--- longest first: {op, shapes, calls, flops, bytes (of all calls), intensity, needed, compute_bound, seconds}. The
--- counts come from a simulated step; operations are counted separately, without fusion.
---@param cfg table config with the options of roofline.run
---@param machine table of roofline.machine
---@return table[] rows
function roofline.operations(cfg, machine)
    local name, ranks = cfg.hardware ~= "" and cfg.hardware or "v5e", roofline.ranks(cfg)
    if not name:find("%-%d+$") then
        local sizes = mx.mesh.plan(cfg, ranks).layout
        name, ranks = ("%s-%d"):format(name, sizes.ranks // sizes.slices), sizes.slices
    else
        ranks = cfg.num_slices
    end
    local step, needed = mx.plan.simulate(cfg, name, ranks, { profile = true }), machine.peak / machine.memory
    local rows = {}
    for _, row in ipairs(step.operations) do
        if row.bytes > 0 then -- a view moves no bytes
            rows[#rows + 1] = {
                op = row.op, shapes = row.shapes, calls = row.calls, flops = row.flops, bytes = row.bytes,
                intensity = row.flops / row.bytes, needed = needed, compute_bound = row.flops / row.bytes > needed,
                seconds = math.max(row.flops / machine.peak, row.bytes / machine.memory),
            }
        end
    end
    table.sort(rows, function(a, b)
        return a.seconds > b.seconds or a.seconds == b.seconds and a.op .. a.shapes < b.op .. b.shapes
    end)
    return rows
end

-- ---- the report ----

-- Refuses sizes that the mesh cannot split.
local function check_sizes(cfg, shape, plan)
    for _, kind in ipairs(mx.models.kinds(shape)) do
        local attention, mlp = kind.block.attention, kind.block.mlp
        plan:spec({ "embed", "mlp" }, { shape.emb, mlp.width }, "MLP")
        plan:spec({ "embed_attn", "heads" }, { shape.emb, attention.heads }, "attention")
        plan:spec({ "embed_attn", "kv_heads" }, { shape.emb, attention.kv_heads }, "attention")
    end
    plan:spec({ "vocab", "embed_vocab" }, { shape.vocab, shape.emb }, "embedding")
    plan:spec({ "layers" }, { shape.layers }, "decoder")
    plan:spec({ "activation_length" }, { cfg.max_target_length }, "tokens")
    mx.parallel.check_attention(plan, shape, cfg.context_parallel_strategy)
end

local function number(n)
    return n < 10 and ("%.2g"):format(n) or util.thousands(n)
end

-- Bytes in at most nine columns.
local function short_bytes(n)
    local text = n < 2 ^ 20 and ("%.3g KiB"):format(n / 2 ^ 10) or util.bytes(n)
    return #text <= 9 and text or ("%.0f GiB"):format(n / 2 ^ 30)
end

local function put_line(put, ...)
    put((ROW:format(...):gsub(" +$", "")))
end

local function put_rows(rows, put)
    local last
    for _, row in ipairs(rows) do
        local same = last and last.axis == row.axis and last.level == row.level
        local name = row.axis:gsub("^context_usp_", "usp_")
        put_line(put, same and "" or name, same and "" or tostring(row.size), same and "" or row.level:upper(),
            short_bytes(row.bytes), number(row.flops / 1e12), number(row.intensity), number(row.needed),
            row.compute_bound and "compute-bound" or "communication-bound")
        put("    " .. row.what)
        last = row
    end
end

local function put_operations(rows, shown_rows, put)
    local all, shown = 0, 0
    for _, row in ipairs(rows) do
        all = all + row.seconds
    end
    for i = 1, math.min(shown_rows, #rows) do
        local row = rows[i]
        shown = shown + row.seconds
        put_line(put, row.op:sub(1, 15), util.thousands(row.calls), "", short_bytes(row.bytes),
            number(row.flops / 1e12), number(row.intensity), number(row.needed),
            row.compute_bound and "compute-bound" or "memory-bound")
        for _, line in ipairs(picture.wrap(row.shapes, 76)) do
            put("    " .. line)
        end
    end
    if #rows > shown_rows then
        put(("and %d more (operations=%d shows all), %.1f %% of the time at the roofline"):format(#rows - shown_rows,
            #rows, 100 * (1 - shown / all)))
    end
end

--- The report as lines of at most 80 columns.
---@param cfg table config with the options of roofline.run
---@return string[]
function roofline.report(cfg)
    local shape, machine = mx.models.shape(cfg), roofline.machine(cfg)
    local plan = mx.mesh.plan(cfg, roofline.ranks(cfg))
    check_sizes(cfg, shape, plan)
    mx.data.sequences(cfg, plan) -- refuses a batch that is not whole
    local lines = {}
    local function put(text)
        lines[#lines + 1] = text
    end
    local function put_text(text)
        for _, line in ipairs(picture.wrap(text)) do
            put(line)
        end
    end
    put(("%s: %s parameters, %s x %s tokens a device"):format(cfg.model_name, util.thousands(mx.models.count(shape)),
        cfg.per_device_batch_size, util.thousands(cfg.max_target_length)))
    put_text(("%s: %s"):format(machine.name, plan:summary()))
    put(("peak %.4g TFLOP/s, ICI %.4g GB/s, DCN %.4g GB/s"):format(machine.peak / 1e12, machine.ici / 1e9,
        machine.dcn / 1e9))
    put("")
    put("what a device sends in a step, and the FLOPs that may hide it:")
    put_line(put, "axis", "size", "", "bytes", "TFLOP", "intensity", "needed", "")
    local used, unused = roofline.rows(cfg, plan, machine)
    put_rows(used, put)
    if #used == 0 then
        put("nothing travels: no axis is larger than 1")
    end
    if #unused > 0 then
        put("")
        put("if an axis of size 1 had 2:")
        put_rows(unused, put)
    end
    put("")
    put_text(advice(cfg, shape, plan, machine))
    local of_experts = experts.advice(cfg, shape, plan, machine.peak / machine.memory)
    if of_experts then
        put_text(of_experts)
    end
    if cfg.operations == 0 then
        return lines
    end
    put("")
    put(("what a device computes in a step, against its memory of %.4g GB/s:"):format(machine.memory / 1e9))
    put_line(put, "operation", "calls", "", "bytes", "TFLOP", "intensity", "needed", "")
    local good, found = pcall(roofline.operations, cfg, machine)
    if good then
        put_operations(found, cfg.operations, put)
    else
        put_text(("not shown: %s"):format(tostring(found)))
    end
    return lines
end

--- Prints the report for a model and a mesh, on rank 0.
---@param words string[] the command line after the script
function roofline.run(words)
    local cfg = mx.config.load(words, {
        simulate = false,
        options = { ranks = -1, peak_tflops = 0.0, link_gbps = 0.0, dcn_gbps = 0.0, operations = 12 },
    })
    mx.flags.report(cfg)
    mx.metrics.say("%s", table.concat(roofline.report(cfg), "\n"))
end

return roofline
