--- Runs of a small model in a folder of their own, which each test begins with and removes.

local mx = require "mx"

local runs = {}

--- To be called before each test: makes the folder, runs.folder.
function runs.setUp()
    runs.folder = os.tmpname()
    os.remove(runs.folder)
    mx.io.mkdir_p(runs.folder)
end

function runs.tearDown()
    mx.io.remove_folder(runs.folder)
end

function runs.config_of(...)
    return mx.config.load { "model_name=tiny", "per_device_batch_size=2", "max_target_length=16", "log_period=1000",
        "base_num_decoder_layers=2", "base_output_directory=" .. runs.folder, "steps=4",
        "dtype=float32", ... }
end

--- What a run prints is not for the test's output.
function runs.quietly(fn, ...)
    local write, said = io.write, {}
    io.write = function(...) -- luacheck: ignore 122
        said[#said + 1] = table.concat({ ... })
        return io.stdout
    end
    local results = table.pack(pcall(fn, ...))
    io.write = write -- luacheck: ignore 122
    mx.metrics.log_to(nil)
    if not results[1] then
        error(results[2], 0)
    end
    return table.concat(said), table.unpack(results, 2, results.n)
end

--- Runs a config to its end. `each(step, model, run)` is called before every step.
function runs.train(config, each)
    local result = {}
    result.said = runs.quietly(function()
        local model = mx.models.new(config)
        local data = mx.data.open(config)
        local optimizer = mx.optim.new(config, model.params)
        local run = mx.run.start(config, model, optimizer, data)
        result.model, result.optimizer, result.run = model, optimizer, run
        for step in run:steps() do
            if each then
                each(step, model, run)
            end
            local loss = mx.train.gradients(model, data, 1)
            run:ended(step, loss, run:update(step, loss))
        end
        result.summary = run:finish()
    end)
    return result
end

function runs.read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

function runs.lines(path)
    local list = {}
    for line in io.lines(path) do
        list[#list + 1] = mx.io.json_decode(line)
    end
    return list
end

return runs
