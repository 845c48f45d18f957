--- Published MFU figures, and what the simulated pod makes of the same jobs.

local mx = require "mx"
local util = require "mx.util"

local repro = {}

--- A file of configs/published.
---@param name string "v5e"
---@return table
function repro.published(name)
    local path = ("configs/published/%s.yml"):format(name)
    local text = mx.read_file(mx.root .. path) or util.refuse("cannot read %s", path)
    return mx.io.yaml_load(text, path)
end

-- The config of a cell's job, as words.
local function words_of(published, cell, more)
    local words = { "model_name=" .. cell.model, "hardware=" .. published.hardware, "slices=" .. cell.slices,
        "enable_checkpointing=false" }
    for _, settings in ipairs({ published.settings or {}, (published.meshes or {})[cell.model] or {}, more or {} }) do
        for key, value in util.sorted_pairs(settings) do
            words[#words + 1] = ("%s=%s"):format(key, value)
        end
    end
    return words
end

--- Simulates the second step of a job.
---@param published table of repro.published
---@param cell {model: string, slices: integer}
---@param constants? table<string, number> in place of the hardware file's
---@param more? table<string, any> config keys
---@return table step_s, mfu, tflops, peak_memory_bytes, times (of mx.sim_times)
function repro.simulate(published, cell, constants, more)
    local config = mx.config.load(words_of(published, cell, more), { simulate = false })
    mx.sim.start(config.hardware, config.slices, constants)
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local start
    for _ = 1, 2 do
        start = mx.now()
        mx.sim_times(true)
        mx.reset_peak()
        mx.train.gradients(model, data, config.gradient_accumulation_steps)
        optimizer:step()
    end
    local seconds = mx.now() - start
    local flops = mx.flops.step(config.flop_formula, model.shape, mx.models.count(model.shape),
        config.per_device_batch_size * config.gradient_accumulation_steps, config.max_target_length)
    local peak = mx.sim.peak(model.shape.dtype)
    local result = {
        step_s = seconds, tflops = flops / seconds / 1e12,
        mfu = mx.flops.mfu(flops / seconds, peak.value, config.flop_formula),
        peak_memory_bytes = mx.memory().peak, times = mx.sim_times(),
    }
    mx.sim.stop()
    return result
end

-- ---- fitting ----

-- The cells that constants are fitted to: those of 1 slice and of the most; the others are predictions.
local function is_fitted(published, cell)
    local most = 1
    for _, other in ipairs(published.cells) do
        most = math.max(most, other.slices)
    end
    return cell.slices == 1 or cell.slices == most
end

local function fitted_cells(published)
    local cells = {}
    for _, cell in ipairs(published.cells) do
        cells[#cells + 1] = is_fitted(published, cell) and cell or nil
    end
    return cells
end

--- Fits the constants of mx.sim.CONSTANTS to the cells of 1 slice and of the most slices by least squares of the MFU.
---@param published table of repro.published
---@param start table<string, number>
---@param progress fun(round: integer, rms: number, constants: table)
---@return table<string, number>
function repro.fit(published, start, progress)
    local cells = fitted_cells(published)
    local function residuals(constants)
        local r = {}
        for i, cell in ipairs(cells) do
            r[i] = repro.simulate(published, cell, constants).mfu - cell.mfu
        end
        return r
    end
    return mx.fit.least_squares(residuals, start, mx.sim.CONSTANTS, progress)
end

return repro
