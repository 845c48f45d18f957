--- Reads hardware files and starts the simulation of a pod.
--
-- The simulated pod is a device of the engine (engine/sim): a script runs on it unchanged, as rank 0 of all its chips.
-- Tensors have no values, a loss is 0, and mx.now() is the chip's time.

local constants = require "mx.sim.constants"
local errors = require "mx.sim.errors"
local label = require "mx.sim.label"
local mx = require "mx"
local stragglers = require "mx.sim.stragglers"
local topology = require "mx.sim.topology"
local util = require "mx.util"
local vmem = require "mx.sim.vmem"

local sim = { constants = constants, errors = errors, label = label, topology = topology, vmem = vmem }

local LOGIT_BYTES = 16 -- that a compiler moves for each logit beside the products: f32 written, read twice, gradient
local BLOCK = 512 -- of an attention kernel, unless the config or the hardware says another

local GROUP_TILE = 512 -- rows of a tile of a grouped product on TPUs, MaxText's wi_tile_fwd_batch_seq

local MOST_HOST_RANKS = 1000000 -- on a simulated machine like this one

-- Required and optional fields of a hardware file: field -> type.
local FIELDS = {
    description = "string", device = "string", peak_flops = "table", matrix_unit_tile = "number",
    memory_bytes = "number", memory_Bps = "number", torus_dims = "number",
    slices = "table", dcn_Bps = "number", host_Bps = "number", hop_latency_s = "number", dcn_hop_latency_s = "number",
}
local OPTIONAL = {
    wraps_from = "number", wraps_multiple = "number", largest_slice = "number",
    link_Bps = "number", die_link_Bps = "number",
    dies = "number", switch_Bps = "number", launch_s = "number", fuses = "boolean", constants = "table",
    sparse_core = "boolean", attention_block = "number", ring_numbered = "table", networks = "table",
    vmem_bytes = "number", library_products = "boolean", collective_streams = "number",
    multiprocessors = "number", product_tile = "table", product_block = "number", block_formats = "table",
}

local CODES = { "int8", "float8", "float8_fnuz", "float4" } -- beside the floats that compute
local BLOCK_FORMATS = { "mxfp8", "nvfp4" } -- whose block scales matrix units may apply

local OFFLOADED = { "all_gather", "reduce_scatter", "all_reduce" } -- collectives that SparseCores can run

sim.NAMES = { "b200", "h100", "h200", "v5e", "v5p", "v6e", "v7x" }

local function check_field(path, file, name, kind, needed)
    local value = file[name]
    if value == nil and needed then
        util.refuse("%s: '%s' is missing", path, name)
    elseif value ~= nil and type(value) ~= kind then
        util.refuse("%s: '%s': expected a %s, got %s", path, name, kind, tostring(value))
    elseif kind == "number" and value and (value < 0 or value ~= value) then
        util.refuse("%s: '%s': expected a number of at least 0, got %s", path, name, value)
    end
end

local function check_names(path, file)
    for name in util.sorted_pairs(file) do
        if not FIELDS[name] and not OPTIONAL[name] then
            local near = util.nearest(name, util.sorted_keys(FIELDS)) or util.nearest(name, util.sorted_keys(OPTIONAL))
            util.refuse("%s: unknown field '%s'%s", path, name, near and (", did you mean '%s'?"):format(near) or "")
        end
    end
end

-- Checks a slice. On a torus it has one side per dimension, and their product is the number of chips; on a switch it is
-- the number of chips.
local function check_slice(path, size, sides, dims)
    local chips = 1
    for _, side in ipairs(type(sides) == "table" and sides or {}) do
        chips = chips * (math.tointeger(side) or 0)
    end
    if type(sides) ~= "table" or #sides ~= math.max(dims, 1) or chips ~= tonumber(size) then
        util.refuse("%s: slices: %s: expected %d sides that multiply to it, as in 4: %s", path, size, math.max(dims, 1),
            ({ [0] = "[4]", "[4]", "[2, 2]", "[2, 2, 1]" })[dims] or "[2, 2, 1, 1]")
    end
end

local function check_above_zero(path, file, names, why)
    for _, name in ipairs(names) do
        if not file[name] or file[name] == 0 then
            util.refuse("%s: '%s': expected a number above 0%s", path, name, why)
        end
    end
end

-- Checks fields that depend on each other.
local function check_together(path, file)
    check_above_zero(path, file, { "memory_bytes", "memory_Bps", "dcn_Bps", "host_Bps", "matrix_unit_tile" }, "")
    check_above_zero(path, file, file.torus_dims > 0 and { "link_Bps" } or { "switch_Bps" },
        (", since torus_dims is %g"):format(file.torus_dims))
    if file.multiprocessors then
        check_above_zero(path, file, { "multiprocessors" }, "")
        for side = 1, 2 do
            local rows = file.product_tile and math.tointeger(file.product_tile[side])
            if not rows or rows < 1 or #file.product_tile ~= 2 then
                util.refuse("%s: product_tile: expected [rows, columns] of a multiprocessor, as in [128, 256]", path)
            end
        end
    end
    if (file.dies or 1) > 1 then
        check_above_zero(path, file, { "die_link_Bps" }, (", since dies is %g"):format(file.dies))
    end
    for _, dtype in ipairs(util.float_names()) do
        local peak = file.peak_flops[dtype]
        if type(peak) ~= "number" or peak <= 0 or peak ~= peak then
            util.refuse("%s: peak_flops: '%s': expected a number above 0, got %s", path, dtype, tostring(peak))
        end
    end
    for dtype, peak in util.sorted_pairs(file.peak_flops) do
        local name = tostring(dtype)
        local codes = util.contains(CODES, name)
        if codes and (type(peak) ~= "number" or peak <= 0 or peak ~= peak) then
            util.refuse("%s: peak_flops: '%s': expected a number above 0, got %s", path, name, tostring(peak))
        elseif not codes and not util.contains(util.float_names(), name) then
            util.refuse("%s: peak_flops: '%s': expected %s, %s", path, name, table.concat(util.float_names(), ", "),
                table.concat(CODES, ", "))
        end
    end
    for _, format in ipairs(file.block_formats or {}) do
        if not util.contains(BLOCK_FORMATS, format) then
            util.refuse("%s: block_formats: '%s': expected %s", path, tostring(format),
                table.concat(BLOCK_FORMATS, ", "))
        end
    end
    for size, sides in pairs(file.slices) do
        check_slice(path, size, sides, math.tointeger(file.torus_dims) or 0)
    end
end

local function check(path, file)
    check_names(path, file)
    for name, kind in util.sorted_pairs(FIELDS) do
        check_field(path, file, name, kind, true)
    end
    for name, kind in util.sorted_pairs(OPTIONAL) do
        check_field(path, file, name, kind, false)
    end
    check_together(path, file)
end

--- "v5e-256" -> "v5e", 256
---@param name string
---@return string, integer?
function sim.split_name(name)
    local kind, count = name:match("^(.-)%-(%d+)$")
    return kind or name, math.tointeger(tonumber(count or ""))
end

--- Parses and checks a hardware file; its constants become fields.
---@param text string
---@param path string for messages
---@return table
function sim.parse(text, path)
    local file = mx.config.parse(text, path)
    check(path, file)
    constants.apply(path, file)
    file.path = path
    return file
end

--- The contents of configs/hardware/NAME.yml.
---@param name string a file of configs/hardware, optionally with the number of chips in a slice: v5e-256
---@return table hardware, integer? chips
function sim.hardware(name)
    local kind, chips = sim.split_name(name)
    local path = ("configs/hardware/%s.yml"):format(kind)
    local text = kind:match("^[%w_-]+$") and mx.read_file(mx.root .. path)
    if not text then
        local near = util.nearest(kind, sim.NAMES)
        util.refuse("hardware=%s: there is no %s%s", name, path, near and (", did you mean %s?"):format(near)
            or "; there are " .. table.concat(sim.NAMES, ", "))
    end
    local hardware = sim.parse(text, path)
    hardware.name = kind
    return hardware, chips
end

--- Whether a chip has a unit: "sparse_core" or "vmem_bytes".
---@param name string
---@param field string of the hardware file
---@return boolean
function sim.has(name, field)
    local value = sim.split_name(name) ~= "host" and sim.hardware(name)[field]
    return value ~= nil and value ~= false
end

--- Whether the matrix units of a chip multiply codes of a format with block scales: "mxfp8" or "nvfp4".
---@param name string
---@param format string
---@return boolean
function sim.multiplies(name, format)
    local formats = sim.split_name(name) ~= "host" and sim.hardware(name).block_formats
    return formats and util.contains(formats, format) or false
end

--- The memory of one chip, or of one rank if a rank is a part of a chip.
---@param name string|table with or without the number of chips; or a hardware table
---@return number bytes
function sim.memory_bytes(name)
    if type(name) == "table" then
        return name.memory_bytes
    end
    local kind, chips = sim.split_name(name)
    return kind == "host" and mx.info().memory_bytes / (chips or 1) or sim.hardware(name).memory_bytes
end

-- The hardware table and the chips of a slice.
local function find(name)
    if type(name) == "table" and rawget(name, "slices") then
        return name, (next(name.slices))
    elseif type(name) ~= "string" then
        error(("a simulated pod has a name, such as \"v5e-256\", not a %s; mx.config.load { \"hardware=v5e-256\" } "
            .. "starts that of a config"):format(type(name)), 0)
    end
    local kind, chips = sim.split_name(name)
    if kind == "host" then
        if chips and (chips < 1 or chips > MOST_HOST_RANKS) then
            util.refuse("hardware=%s: expected 1 to %d ranks of this machine", name, MOST_HOST_RANKS)
        end
        return mx.host.hardware(chips or 1), chips or 1
    end
    if not chips then
        sim.hardware(kind)
        util.refuse("hardware=%s: say how many chips a slice has, as in %s-8", name, name)
    end
    return sim.hardware(name)
end

-- The bandwidth between slices: that of the node type `network`, if one is given.
local function dcn_Bps(hardware)
    if not hardware.network then
        return hardware.dcn_Bps
    end
    local networks = hardware.networks or {}
    return networks[hardware.network] or util.refuse("network=%s: %s", hardware.network, next(networks)
        and ("nodes of %s are %s"):format(hardware.description, table.concat(util.sorted_keys(networks), ", "))
        or ("%s has one network between slices: leave network out; dcn_Bps changes its bandwidth"):format(
            hardware.description))
end

-- The kernel of attention: that of the config, in the blocks of the hardware's library if it has one.
local function attention_kernel(hardware)
    local kernel = {
        block_q = BLOCK, block_kv = BLOCK, block_q_dkv = BLOCK, block_kv_dkv = BLOCK, block_q_dq = BLOCK,
        block_kv_dq = BLOCK, fused_backward = false, scores_in_memory = false, fixed_maximum = false,
    }
    for name, value in pairs(hardware.attention_kernel or {}) do
        kernel[name] = value
    end
    for name in pairs(hardware.attention_block and kernel or {}) do
        kernel[name] = name:find("^block") and hardware.attention_block or kernel[name]
    end
    -- cuDNN, for packed sequences, and the kernels of this machine leave out what is not of one document.
    kernel.skips_documents = hardware.library_products or hardware.name == "host"
    kernel.fused_backward = kernel.fused_backward or hardware.attention_block ~= nil
    return kernel
end

-- The rows of a tile of a grouped product. Experts that compute all slots of a capacity are equal products. GPUs pad
-- each group to tiles of its own.
local function group_tile(hardware)
    return hardware.torus_dims > 0 and not hardware.expert_masks and (hardware.group_tile or GROUP_TILE) or 0
end

--- The argument of mx.sim_start for a pod: "v5e-256" and 32 mean 32 slices of 256 chips; "host-2" means this machine
--- with two ranks, measured now.
---@param name string|table or a hardware table that is one slice
---@param slices integer
---@param values? table<string, any> used instead of those in the hardware file
---@return table pod, table hardware
function sim.pod(name, slices, values)
    local hardware, chips = find(name)
    for constant, value in pairs(values or {}) do
        hardware[constant] = value
    end
    for _, kind in ipairs(OFFLOADED) do
        if hardware["sparse_core_collective_offload_" .. kind] and not hardware.sparse_core then
            util.refuse("sparse_core_collective_offload_%s: %s has no SparseCores", kind, hardware.description)
        end
    end
    local sides, product_tile = topology.sides(hardware, chips), hardware.product_tile or {}
    local slow = stragglers.slowdown(hardware, chips * slices)
    hardware.sides, hardware.dims = sides, hardware.torus_dims > 0 and topology.dims(hardware, sides) or {}
    hardware.slice_chips, hardware.given = chips, name
    return {
        slices = slices,
        chip = {
            bf16_flops = hardware.peak_flops.bfloat16,
            f32_flops = hardware.f32_products_flops or hardware.peak_flops.float32,
            i8_flops = hardware.peak_flops.int8, f8_flops = hardware.peak_flops.float8,
            f8_fnuz_flops = hardware.peak_flops.float8_fnuz, f4_flops = hardware.peak_flops.float4,
            tile = math.tointeger(hardware.matrix_unit_tile), multiprocessors = hardware.multiprocessors,
            product_tile_m = product_tile[1], product_tile_n = product_tile[2], memory_bytes = hardware.memory_bytes,
            memory_Bps = hardware.memory_Bps, host_Bps = hardware.host_Bps, launch_s = hardware.launch_s or 0,
            fuses = hardware.fuses ~= false, library_products = hardware.library_products,
            collective_share = hardware.collective_share,
            offloads_all_gather = hardware.sparse_core_collective_offload_all_gather,
            offloads_reduce_scatter = hardware.sparse_core_collective_offload_reduce_scatter,
            offloads_all_reduce = hardware.sparse_core_collective_offload_all_reduce,
            matrix_efficiency = (hardware.matrix_efficiency or 1) / slow,
            attention_efficiency = (hardware.attention_efficiency or 1) / slow,
            product_block = hardware.product_block, product_s = hardware.product_s,
            attention_step_s = hardware.attention_step_s, logits_again = hardware.logits_again,
            memory_efficiency = hardware.memory_efficiency or 1,
            vector_flops = hardware.vector_flops, one_hot_embedding = hardware.one_hot_embedding or false,
            expert_masks = hardware.expert_masks, group_tile = group_tile(hardware),
            logit_bytes = hardware.logit_bytes or (hardware.fuses ~= false and LOGIT_BYTES or 0),
            attention = attention_kernel(hardware),
        },
        network = {
            dims = hardware.dims, slice_chips = chips * math.tointeger(hardware.dies or 1),
            has_dies = (hardware.dies or 1) > 1, ring_order = topology.is_ring(hardware, chips),
            splits_sides = hardware.allow_split_physical_axes, rings = hardware.rings, hop_s = hardware.hop_latency_s,
            one_stream = hardware.collective_streams == 1,
            switch_Bps = hardware.switch_Bps or 0, dcn_Bps = dcn_Bps(hardware), dcn_hop_s = hardware.dcn_hop_latency_s,
            ici_efficiency = hardware.ici_efficiency or 1, dcn_efficiency = hardware.dcn_efficiency or 1,
        },
    }, hardware
end

-- Whether XLA computes attention without a kernel. Kernels have no bias by relative position; with a causal mask,
-- MaxText left the bias out.
local function has_no_kernel(config)
    local biased = config.relative_bias_buckets > 0 and config.attention_type == "full"
    return config.attention == "dot_product" or config.attention == "autoselected" and biased
end

--- Whether tokens move to experts and back by products with masks: in MaxText, those of sparse_matmul=false with a
--- capacity. Runs on this machine copy rows instead.
---@param config table
---@return boolean
function sim.has_expert_masks(config)
    local is_pod = config.hardware ~= "" and sim.split_name(config.hardware) ~= "host"
    return is_pod and not config.sparse_matmul and config.capacity_factor > 0
end

--- The settings of a config for the pod, besides hardware and slices.
---@param config table
---@return table<string, any> values for sim.start
function sim.settings(config)
    local settings = {}
    for _, kind in ipairs(OFFLOADED) do
        local key = "sparse_core_collective_offload_" .. kind
        settings[key] = config[key] or nil
    end
    settings.allow_split_physical_axes = config.allow_split_physical_axes or nil
    settings.rings = tonumber(config.custom_mesh:match("%d+$"))
    settings.topology = config.topology ~= "" and config.topology or nil
    settings.network = config.network ~= "" and config.network or nil
    settings.dcn_Bps = config.dcn_Bps > 0 and config.dcn_Bps or nil
    settings.collective_streams = config.collective_streams > 0 and config.collective_streams or nil
    settings.one_hot_embedding, settings.logits_again = config.use_iota_embed, config.num_vocab_tiling > 1
    settings.expert_masks = sim.has_expert_masks(config)
    settings.attention_kernel = {
        scores_in_memory = has_no_kernel(config), fused_backward = config.sa_use_fused_bwd_kernel,
        fixed_maximum = config.use_max_logit_estimate >= 0, document = config.simulated_document_length,
        block_q = config.sa_block_q, block_kv = config.sa_block_kv, block_q_dkv = config.sa_block_q_dkv,
        block_kv_dkv = config.sa_block_kv_dkv, block_q_dq = config.sa_block_q_dq, block_kv_dq = config.sa_block_kv_dq,
    }
    return settings
end

--- Starts a simulation: from now on this process is a rank of a simulated pod. Existing tensors keep their values; do
--- not mix them with tensors that are created later.
---@param name string such as "v5e-256"
---@param slices? integer default: 1
---@param values? table<string, any> used instead of those in the hardware file
---@param rank? integer default: 0
---@return table hardware
function sim.start(name, slices, values, rank)
    local pod, hardware = sim.pod(name, slices or 1, values)
    pod.rank = rank or 0
    collectgarbage()
    mx.sim_start(pod)
    sim.now = hardware
    hardware.chips, hardware.pod_slices = pod.network.slice_chips, pod.slices
    return hardware
end

--- Adds a chip of the same pod as seen by another rank, beside those that are simulated, and makes it current. It has
--- its own clock, links, memory and mesh.
---@param name string
---@param slices integer
---@param values? table<string, any>
---@param rank integer
---@return integer number for mx.sim_use, which makes it current again
function sim.add(name, slices, values, rank)
    local pod = sim.pod(name, slices, values)
    pod.rank = rank
    return mx.sim_add(pod)
end

--- Ends the simulation.
function sim.stop()
    mx.sim_stop()
    sim.now = nil
end

--- The peak to which an MFU on the simulated pod refers.
---@param dtype string bf16 or f32
---@return {value: number, source: string}
function sim.peak(dtype)
    local h = sim.now
    local name = mx.dtypes[dtype].long_name
    return { value = h.peak_flops[name], source = ("%s of %s (%s)"):format(name, h.description, h.path) }
end

return sim
