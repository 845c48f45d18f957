--- What mx.help says of files, plots, ranks, simulated pods and whole modules; entries as in functions.lua.

return {
    { title = "Files",
        { "save(path, value)", "Writes nested tables of tensors, numbers, strings and booleans.",
            torch = "save", code = [[
mx.save("/tmp/state.h5", { w = mx.ones(2), step = 3 })
mx.load("/tmp/state.h5").step --> 3]] },
        { "load(path)", "Reads what mx.save wrote. Nothing is executed.", torch = "load", code = [[
mx.save("/tmp/state.h5", { w = mx.ones(2) })
mx.load("/tmp/state.h5").w --> {1, 1}]] },
        { "save_npy(path, t)", "Writes an array of numpy.", torch = "numpy.save",
            code = "mx.save_npy('/tmp/x.npy', mx.ones(2))" },
        { "load_npy(path, options)", "Reads an array of numpy. { dtype = } converts it.", torch = "numpy.load",
            code = [[
mx.save_npy("/tmp/x.npy", mx.ones(2))
mx.load_npy("/tmp/x.npy") --> {1, 1}]] },
        { "save_npz(path, tensors, options)", "Writes arrays of numpy by name. { compress = true } makes it smaller.",
            torch = "numpy.savez", code = "mx.save_npz('/tmp/x.npz', { x = mx.ones(2) })" },
        { "load_npz(path, options)", "Reads arrays of numpy by name. Options: dtype, names.", code = [[
mx.save_npz("/tmp/x.npz", { x = mx.ones(2) })
mx.load_npz("/tmp/x.npz").x --> {1, 1}]] },
        { "load_csv(path, options)", "Numbers of a CSV file as a tensor, "
            .. "and the names of its columns. Options: separator, header, skip, missing, dtype.",
            torch = "numpy.loadtxt, pandas.read_csv", code = [[
mx.io.write_file_atomic("/tmp/x.csv", "a,b\n1,2\n")
mx.load_csv("/tmp/x.csv") --> {{1, 2}}, {a, b}]] },
        { "from_bytes(text, options)", "A tensor from the bytes of its values. Options: shape, dtype, layout.",
            torch = "frombuffer", code = "mx.from_bytes('\\1\\2', { dtype = 'u8' }) --> {1, 2}" },
        { "to_bytes(t)", "The bytes of the values, as a string.", torch = "numpy.tobytes",
            code = "#mx.to_bytes(mx.ones(2)) --> 8" },
        { "read_file(path)", "The text that rank 0 reads there, on every rank; nil if there is none.",
            code = "mx.read_file('/tmp/missing') == nil --> true" },
        { "io.h5_write(path, tensors, attributes)", "Writes tensors by name, and texts and numbers as attributes, to "
            .. "an HDF5 file that other programs read: the whole file or none. A / in a name makes groups.",
            torch = "h5py.File.create_dataset", code = [[
mx.io.h5_write("/tmp/x.h5", { ["run/loss"] = mx.tensor { 2, 1 } }, { note = "first" })]] },
        { "io.h5_read(path, name, options)", "Reads a tensor of any HDF5 file, or all of them by name and the "
            .. "attributes if there is no name. Options: first (1) and rows, of the first dimension. Types that "
            .. "tensors do not have are read as one that holds all of their numbers: f16 as f32, u16 as i32, u32 and "
            .. "u64 as i64 (refused above 2^63 - 1), booleans as u8. mx.io.h5_write writes one.",
            torch = "h5py, h5py.File, h5py.Dataset, pandas.read_hdf, netCDF4, xarray", code = [[
mx.io.h5_write("/tmp/x.h5", { loss = mx.tensor { 3, 2, 1 } })
mx.io.h5_read("/tmp/x.h5", "loss", { first = 2, rows = 1 }) --> {2}]] },
        { "io.h5_open(path)", "An open HDF5 file: file:read(name, options) as mx.io.h5_read, "
            .. "file:read_into(name, t, options), file:info() and file:attributes().", code = [[
mx.io.h5_write("/tmp/x.h5", { x = mx.arange(6):view(3, 2) })
local file <close> = mx.io.h5_open("/tmp/x.h5")
local function rows() -- one at a time: mx.data.dataset(rows) makes batches of them
    return coroutine.wrap(function()
        for i = 1, file:info()[1].shape[1] do coroutine.yield { x = file:read("x", { first = i, rows = 1 }) } end
    end)
end
rows()().x --> {{0, 1}}]] },
        { "io.h5_writer(path)", "An HDF5 file that is written piece by piece: writer:put(name, t), "
            .. "writer:attributes(map), then writer:commit(), before which there is no file.", code = [[
local writer <close> = mx.io.h5_writer("/tmp/x.h5")
writer:put("x", mx.ones(2))
writer:commit()
mx.io.h5_read("/tmp/x.h5", "x") --> {1, 1}]] },
        { "io.h5_info(path)", "What an HDF5 file contains: a list of { name =, dtype = in the file, shape =, "
            .. "bytes = in memory }, and the attributes.", code = [[
mx.io.h5_write("/tmp/x.h5", { x = mx.ones(2, 3) })
mx.io.h5_info("/tmp/x.h5")[1].shape[2] --> 3]] },
        { "io.json_decode(text)", "The value of a JSON text. null is mx.io.null.",
            torch = "json.loads, json.load, json",
            code = "mx.io.json_decode('{\"a\": [1, 2]}').a[2] --> 2" },
        { "io.json_encode(value, options)", "JSON of tables, texts, numbers and booleans. { indent = } sets it out in "
            .. "lines. mx.io.array(t) marks a table that is a list even if it is empty.",
            torch = "json.dumps, json.dump",
            code = "mx.io.json_encode { a = 1, b = mx.io.array {} } --> {\"a\":1,\"b\":[]}" },
        { "io.yaml_load(text)", "The value of a YAML text.", torch = "yaml, yaml.safe_load",
            code = "mx.io.yaml_load('lr: 0.1').lr --> 0.1" },
        { "io.read_file(path)", "The text of a file, read by this rank; nil and a message if it cannot. mx.read_file "
            .. "reads on one rank for all.", torch = "open().read", code = [[
mx.io.write_file_atomic("/tmp/x.txt", "a text")
mx.io.read_file("/tmp/x.txt") --> a text]] },
        { "io.write_file_atomic(path, text)", "Writes the whole file, or leaves it as it was.", torch = "open().write",
            code = "mx.io.write_file_atomic('/tmp/x.txt', 'a text')" },
        { "io.append_line(path, text)", "Adds a line to the end of a file, which is made if it is missing.", code = [[
mx.io.append_line("/tmp/x.txt", "step 2")
#mx.io.read_file("/tmp/x.txt") >= 7 --> true]] },
        { "io.exists(path)", "Whether there is a file or folder.", torch = "os.path.exists",
            code = "mx.io.exists('/tmp/missing') --> false" },
        { "io.list(path)", "The names in a folder, sorted.", torch = "os.listdir, glob",
            code = "type(mx.io.list('/tmp')) --> table" },
        { "io.mkdir_p(path)", "Makes a folder, and those above it.", torch = "os.makedirs",
            code = "mx.io.mkdir_p('/tmp/mxlua-help/new')" },
        { "find_file(path)", "Where a file of the command line is found: below the current folder or the installation.",
            code = "local path = mx.find_file('configs/base.yml')" },
        { "read_line(prompt)", "The next line of the standard input, on every rank.", code = [[
local function ask() return mx.read_line("> ") end]] },
    },
    { title = "Plots, progress, sweeps and tuning",
        { "plot { file =, ... }", "Draws numbers as one .svg or .html file. kind: line (the standard) "
            .. "and scatter of y and x, or of series, a list of { name =, x =, y =, dashed = }; histogram of values "
            .. "with bins; heatmap of values (rows, columns); images of values (N, H, W) or (N, H, W, 3) in columns. "
            .. "Options: title, caption, x_label, y_label, x_log, y_log, low, high; charts: a list of such tables "
            .. "for one page.",
            torch = "matplotlib, plt.plot, plt.hist, plt.imshow", code = [[
mx.plot { file = "/tmp/loss.svg", title = "Loss", y = { 3, 2, 1 } }
mx.plot { file = "/tmp/two.svg", y_log = true, x_label = "step",
    series = { { name = "sgd", y = { 3, 2, 1 } }, { name = "adamw", y = { 2, 1, 0.5 }, dashed = true } } }]] },
        { "progress(n, what)", "Counts a loop and shows a bar in the terminal.", torch = "tqdm", code = [[
for i, say in mx.progress(3, "training") do
    say(("loss %.1f"):format(1 / i))
end]] },
        { "sparkline(values, width)", "Numbers as one line of text.",
            code = "local text = mx.sparkline { 1, 2, 3 }" },
        { "sweep { grid =, run = }", "Runs a function with many configurations and returns the results, the one with "
            .. "the least loss first. Options: grid, or random and count; minimize or maximize: the name of a "
            .. "result; seed; resume: a folder, so that a killed sweep continues; page: an .html file; on_error, "
            .. "apart: lua/mx/run/README.md.",
            torch = "ray.tune, optuna, wandb.sweep", code = [[
local curves = {}
local rows = mx.sweep { grid = { x = { 1, 2 } }, run = function(config, job)
    curves[job.name] = { config.x, config.x / 2 } -- results are numbers, strings and booleans
    return { loss = config.x }
end }
rows[1].config.x, rows[1].result.loss --> 1, 1]] },
        { "tune { name =, space =, standard =, run = }", "Finds the fastest of several ways to do the same work on "
            .. "this machine, and keeps the choice in a file.",
            torch = "triton.autotune, tune_jax, backends.cudnn.benchmark", code = [[
local best, report = mx.tune {
    name = "fill", shape = { n = 4096 }, space = { parts = { 1, 64 } }, standard = { parts = 64 },
    file = "", budget_s = 1,
    run = function(choice)
        return function()
            for _ = 1, choice.parts do
                mx.zeros { 4096 // choice.parts }
            end
        end
    end,
}
local parts, gain = best.parts, report.gain]] },
    },
    { title = "Memory, profiles and traces",
        { "memory()", "Bytes of tensor memory: in use, the peak, and others.",
            torch = "cuda.memory_allocated, memory_summary",
            code = "mx.memory().in_use >= 0 --> true" },
        { "memory_limit(bytes)", "Sets the limit of tensor memory; 0: none.",
            torch = "set_per_process_memory_fraction", code = "mx.memory_limit(mx.memory().limit)" },
        { "reset_peak()", "Restarts the peak of mx.memory().", torch = "cuda.reset_peak_memory_stats",
            code = "mx.reset_peak()" },
        { "trim()", "Returns unused tensor memory to the system, once what is being offloaded is done.",
            torch = "cuda.empty_cache", code = "mx.trim()" },
        { "kept()", "The results that the tapes keep for backward: rows of name, op, bytes, storage.",
            code = "#mx.kept() --> 0" },
        { "profile(on)", "true starts the profiler, false stops it.", torch = "profiler.profile", code = [[
mx.profile(true)
mx.ones(2):exp()
mx.profile(false)
local slowest = mx.profile_report()[1].op]] },
        { "profile_report()", "Rows of op, shapes, calls, seconds, flops, bytes; the longest time first.",
            torch = "key_averages", code = "local rows = mx.profile_report()" },
        { "trace_start(path)", "Starts to record every operation. The file is for Perfetto.",
            torch = "export_chrome_trace", code = [[
mx.trace_start("/tmp/trace.json")
mx.ones(2):exp()
mx.trace_stop()]] },
        { "trace_stop()", "Ends the recording and writes the file.", code = "mx.trace_stop()" },
        { "trace_events()", "The recorded events, and the seconds that they cover.", code = [[
mx.trace_start()
mx.ones(2):exp()
mx.trace_stop()
#mx.trace_events() > 0 --> true]] },
        { "trace_span(name, start_s, end_s)", "Names a part of the time in a trace.",
            torch = "record_function", code = [[
local start = mx.now()
mx.trace_span("loading", start, mx.now())]] },
        { "find_bad(fn, ...)", "The first result inside fn with a NaN or an infinity, or nil.",
            torch = "autograd.detect_anomaly, autograd.set_detect_anomaly, detect_anomaly, set_detect_anomaly",
            code = [[
mx.find_bad(function() return mx.tensor { 0 }:log() end).op --> log]] },
        { "place(text)", "Names the current part of the script for mx.find_bad.",
            code = "mx.place('layer 3') mx.place(nil)" },
        { "now()", "Seconds of a monotonic clock (mx.clock says which); on a simulated pod, simulated time.",
            torch = "time.perf_counter, cuda.synchronize, cuda.Event", code = "mx.now() >= 0 --> true" },
        { "clock(name)", "What mx.now, profiles and mx.peak count on this machine, wall or processor; sets it first if "
            .. "a name is given. Processor time is that of one thread: mx.threads() must be 1.",
            torch = "time.thread_time, time.process_time", code = "mx.clock() --> wall" },
        { "started()", "When the program started, in seconds of the clock of mx.now().",
            code = "mx.started() <= mx.now() --> true" },
        { "peak { kind =, seconds = }", "A measured peak of this machine: kind fma (the instruction), "
            .. "product (with packed operands in the caches) or copy.", code = [[
local copy = mx.peak { kind = "copy", seconds = 0.01 }
local rate, unit = copy.value, copy.unit]] },
        { "offload_open(directory)", "The folder of values that policies offload.", code = "mx.offload_open('')" },
        { "offload_stats(reset)", "What was offloaded, and how long the script waited.",
            code = "mx.offload_stats().away_bytes --> 0" },
    },
    { title = "Ranks and machines",
        { "rank()", "The number of this rank, from 0.", torch = "distributed.get_rank",
            code = "mx.rank() < mx.ranks() --> true" },
        { "ranks()", "The number of ranks.", torch = "distributed.get_world_size",
            code = "mx.ranks() >= 1 --> true" },
        { "barrier(axes)", "Waits for all ranks.", torch = "distributed.barrier", code = "mx.barrier()" },
        { "share_text(text, root)", "The root's text on all ranks.", torch = "broadcast_object_list",
            code = "mx.share_text('hello') --> hello" },
        { "flush()", "Starts asynchronous collectives that wait for others to join them.", code = "mx.flush()" },
        { "prefetch(x, options)", "Starts an all_gather that a later call uses.", code = [[
local x = mx.ones(2)
mx.prefetch(x, { dim = 1 })
mx.all_gather(x, { dim = 1 }):size(1) == 2 * mx.ranks() --> true]] },
        { "comm_options(options)", "Settings of collectives: sizes of buckets, prefetching, timeouts.",
            code = "mx.comm_options { timeout_s = 600 }" },
        { "comm_stats(reset)", "Seconds, calls and bytes of communication.",
            code = "mx.comm_stats().exposed_s >= 0 --> true" },
        { "mesh_define(axes)", "Sets the mesh, a list of axes. Their names are the option axis of collectives. "
            .. "mx.mesh does this for a config.", torch = "init_device_mesh",
            code = "mx.mesh_define { { name = 'data', ici = mx.ranks() } }" },
        { "axis_size(axes)", "The number of ranks along axes of the mesh.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.axis_size("data") == mx.ranks() --> true]] },
        { "axis_index(axes)", "The index of this rank along axes, from 0.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.axis_index("data") == mx.rank() --> true]] },
        { "axis_ranks(axes)", "The ranks along axes, in ascending order.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
#mx.axis_ranks("data") == mx.ranks() --> true]] },
        { "axes_coordinates(axes, rank)", "The coordinates of a rank in a mesh of these axes.",
            code = "mx.axes_coordinates({ { name = 'data', ici = 2, dcn = 1 } }, 1).data --> 1" },
        { "axes_rank(axes, coordinates)", "The rank at these coordinates.",
            code = "mx.axes_rank({ { name = 'data', ici = 2, dcn = 1 } }, { data = 1 }) --> 1" },
        { "threads(n)", "The number of threads; sets it first if n is given.",
            torch = "set_num_threads, get_num_threads, set_num_interop_threads, get_num_interop_threads",
            code = "mx.threads() >= 1 --> true" },
        { "isa(name)", "The instruction set in use; sets it first if a name is given.",
            code = "mx.isa() ~= nil --> true" },
        { "host_name()", "The name of the machine.", code = "local name = mx.host_name()" },
        { "info()", "Libraries, processor and ranks.", torch = "__config__.show, utils.collect_env",
            code = "local about = mx.info()" },
        { "environment(prefix)", "The environment variables that begin with a text.",
            code = "next(mx.environment('NO_SUCH_')) --> nil" },
        { "version", "The version of mxlua.", torch = "__version__", code = "local text = mx.version" },
        { "root", "The folder of lua/, scripts/ and configs/.", code = "local folder = mx.root" },
        { "abort(message)", "Ends all ranks with status 1 and a message.", torch = "sys.exit", code = [[
local loss = 1
if loss ~= loss then mx.abort("the loss is NaN") end]] },
        { "catch_stop()", "From now on, signals to stop are only recorded for mx.stop_requested.",
            code = "if os.getenv('SCHEDULED') then mx.catch_stop() end" },
        { "stop_requested()", "The signal that asked this rank to stop, or nil.",
            code = "mx.stop_requested() --> nil" },
        { "wrap(text, columns)", "A text in lines of at most so many columns.",
            code = "mx.wrap('one two', 80) --> one two" },
        { "nearest(word, names)", "The nearest name to a misspelt one, or nil.",
            code = "mx.nearest('sofmax', { 'softmax', 'sum' }) --> softmax" },
        { "mpi_reference(kind, in, out, bytes)", "The MPI library's own collective, for comparisons.", code = [[
local function reference(x, y) mx.mpi_reference("all_reduce", x, y, x:bytes()) end]] },
        { "remat_region(kept, offloaded, fn, ...)",
            "What mx.remat is made of: lists of names. kept = false: all are kept but those of the second list.",
            code = "mx.remat_region(false, {}, function() return mx.ones(1) end) --> {1}" },
    },
    { title = "Simulated pods",
        { "is_simulated()", "Whether a chip is simulated. Tensors then have no values.",
            code = "mx.is_simulated() --> false" },
        { "sim_start(pod)", "Starts a simulated pod. mx.sim.start(\"v5e-256\", 2) does so by name, here with 2 slices; "
            .. "mx.config.load by the key hardware.", code = [[
local function start() mx.sim_start(mx.sim.pod("v5e-256", 2)) end]] },
        { "sim_add(pod)", "One more simulated chip beside the others, with its own clock, links and memory.",
            code = 'local function add() return mx.sim_add(mx.sim.pod("v5e-256", 2)) end' },
        { "sim_use(number)", "Makes a simulated chip current again.",
            code = "local function back(number) mx.sim_use(number) end" },
        { "sim_stop()", "Returns to this machine.", code = "if mx.is_simulated() then mx.sim_stop() end" },
        { "sim_times(reset)", "Seconds of the simulated chip by purpose.",
            code = "local function times() return mx.sim_times() end" },
        { "sim_wait_until(seconds)", "A simulated chip waits until mx.now() is so much. Nothing on this machine.",
            code = "mx.sim_wait_until(1e9)" },
        { "sim_placement()", "The chips of each axis along the torus, or nil.",
            code = "local function placement() return mx.sim_placement() end" },
    },
    { title = "Help",
        { "help(name)", "This text: mx.help() is an overview, mx.help \"cat\" explains one name of mx or PyTorch, or a "
            .. "key of configurations; other words are looked up in all texts. In a shell: mxlua --help cat.",
            torch = "help, dir", code = "#mx.help('unsqueeze') > 0 --> true" },
        { "ops()", "The names of all operations; can be printed.", code = "#mx.ops() > 50 --> true" },
        { "op_info(name)", "What an operation takes and gives, as a table.",
            code = "mx.op_info('add').results --> 1" },
    },
    { title = "Modules",
        { "nn", "Layers: lua/mx/nn/README.md.", torch = "nn, nn.Module",
            code = "mx.nn.linear ~= nil --> true" },
        { "optim", "Optimizers: lua/mx/nn/README.md.", torch = "optim", code = "mx.optim.adamw ~= nil --> true" },
        { "linalg", "Linear systems: lua/tensors.md.", torch = "linalg", code = "mx.linalg.solve ~= nil --> true" },
        { "data", "Training data: lua/mx/data/README.md.", torch = "utils.data",
            code = "mx.data.dataset ~= nil --> true" },
        { "config", "Configs and command lines: configs/README.md.",
            torch = "argparse, hydra, TrainingArguments", code = [[
mx.config.load { "model_name=tiny", "steps=3" }.steps --> 3]] },
        { "models", "Decoders, from a config: lua/mx/models/README.md.",
            torch = "nn.Transformer",
            code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
local params = model.params]] },
        { "model:hidden(tokens)", "tokens (B, S) i32 -> the last layer's output after the final norm (B, S, width); "
            .. "the third result is the output before the norm.", torch = "output_hidden_states, last_hidden_state, "
            .. "hidden states", code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
local h = model:hidden(mx.zeros({ 1, 5 }, "i32"))
model:logits(h):size(2) --> 5]] },
        { "model:logits(h)", "Outputs of model:hidden (..., width) -> logits (..., vocabulary).", torch = "lm_head",
            code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
model:logits(model:hidden(mx.zeros({ 1, 5 }, "i32"))[{ 1, -1 }]):dim() --> 1]] },
        { "model:loss(batch)", "The mean cross-entropy of { tokens =, targets = }, (B, S) i32. model:loss(batch, "
            .. "true): without dropout.", code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
local ids = mx.zeros({ 1, 5 }, "i32")
model:loss({ tokens = ids, targets = ids }):numel() --> 1]] },
        { "model:layer(i, x, run)", "The output of layer i. A script may replace it, to record or change activations.",
            torch = "activation hooks, TransformerLens, nnsight", code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
local activations, layer = {}, model.layer
function model:layer(i, x, run)
    local y, extra = layer(self, i, x, run)
    activations[i] = y:detach()
    return y, extra
end
model:hidden(mx.zeros({ 1, 5 }, "i32"))
#activations == model.shape.layers --> true]] },
        { "run", "Training runs with a folder, a log and checkpoints: lua/mx/run/README.md.",
            torch = "Trainer, lightning",
            code = [[
local function train(words) -- of a model of your own: params, and a loss of a batch
    local config = mx.config.load(words) -- steps, learning_rate, run_name, checkpoint_period ...: configs/base.yml
    local params = {}
    local layer = mx.nn.linear(params, "layer", 2, 1)
    local model = { params = params }
    function model:loss(batch) return mx.mse_loss(layer(batch.x), batch.y) end
    local data = mx.data.dataset({ x = mx.ones(64, 2), y = mx.ones(64, 1) }, { batch = 32 })
    local run = mx.run.start(config, model, mx.optim.new(config, params), data)
    for step in run:steps() do
        local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
        run:ended(step, loss, run:update(step, loss))
    end
    return run:finish()
end
train ~= nil --> true]] },
        { "checkpoint", "Saves and loads runs: lua/mx/checkpoint/README.md.", torch = "distributed.checkpoint, "
            .. "distributed.checkpoint.save, distributed.checkpoint.load",
            code = [[
local params = {}
mx.nn.linear(params, "w", 2, 1)
local all = { params = params, optimizer = mx.optim.sgd(params) }
mx.checkpoint.saver { directory = "/tmp/run", params = params, optimizer = all.optimizer }:save(7, {}, true)
mx.checkpoint.load_newest("/tmp/run", all).step --> 7]] },
        { "weights", "Files of Hugging Face and GGUF: lua/mx/weights/README.md. mx.weights.model(path) reads a model, "
            .. "and parameters.h5 of a run, too.",
            torch = "AutoModelForCausalLM, from_pretrained, safetensors",
            code = "mx.weights.load ~= nil --> true" },
        { "tokenizer", "Tokenizers: lua/mx/data/tokenizers.md.", torch = "AutoTokenizer", code = [[
local tokenizer = mx.tokenizer.open("bytes")
tokenizer.vocab_size >= 256 --> true]] },
        { "generate", "Continues texts.", torch = "model.generate", code = "mx.generate.text ~= nil --> true" },
        { "evaluate", "The loss of evaluation data; perplexity is e^loss.", torch = "perplexity",
            code = "mx.evaluate.loss ~= nil --> true" },
        { "parallel", "A model on a mesh: lua/mx/parallel/README.md.",
            torch = "fully_shard, ZeroRedundancyOptimizer, FullyShardedDataParallel, FSDP, DDP, deepspeed, "
            .. "accelerate", code = "mx.parallel.new ~= nil --> true" },
        { "mesh", "Axes over ranks: lua/mx/parallel/README.md.", torch = "DeviceMesh",
            code = "mx.mesh.new ~= nil --> true" },
        { "sim", "Simulated hardware: lua/mx/sim/README.md.", code = "mx.sim.start ~= nil --> true" },
        { "report", "HTML reports of runs: lua/mx/report/README.md.", code = "mx.report.write ~= nil --> true" },
        { "metrics", "Progress lines and rates of a run.", code = "mx.metrics.new ~= nil --> true" },
        { "tensorboard", "Event files.",
            torch = "utils.tensorboard.SummaryWriter, SummaryWriter, wandb.init, wandb.log, mlflow",
            code = "mx.tensorboard.open ~= nil --> true" },
        { "io", "Files: HDF5, JSON, YAML, texts, folders (see Files). What has no page here serves other modules.",
            code = "mx.io.json_decode('{\"a\": 1}').a --> 1" },
        { "util", "Sorted iteration, seeds, options, one-line errors.",
            code = "mx.util.thousands(12345) --> 12,345" },
        { "train", "Steps of a run, gradients over ranks.", code = "mx.train.gradients ~= nil --> true" },
        { "flops", "FLOPs of models.", torch = "FlopCounterMode", code = "mx.flops.step ~= nil --> true" },
        { "prepare", "Turns texts into files of tokens.", code = "mx.prepare.run ~= nil --> true" },
        { "outputs", "Which files a run writes.", code = "mx.outputs.check ~= nil --> true" },
        { "files", "Whether files are the same on all ranks.", code = "mx.files.check_same ~= nil --> true" },
        { "guard", "Detects NaN and loss spikes.", code = "mx.guard.new ~= nil --> true" },
        { "goodput", "What the time of a run was spent on.", code = "mx.goodput.new ~= nil --> true" },
        { "profiler", "Records steps of a run.", code = "mx.profiler.new ~= nil --> true" },
        { "bench", "Benchmarks: lua/mx/bench/README.md.", code = "mx.bench.run ~= nil --> true" },
        { "collectives", "Measures collectives.", code = "mx.collectives.run ~= nil --> true" },
        { "kernels", "Measures operations.", torch = "utils.benchmark", code = "mx.kernels.run ~= nil --> true" },
        { "policies", "Compares policies of rematerialisation.", code = "mx.policies.run ~= nil --> true" },
        { "generation", "Compares kinds of weights in generation.", code = "mx.generation.run ~= nil --> true" },
        { "precision", "Compares recipes of quantization.", code = "mx.precision.run ~= nil --> true" },
        { "pipeline", "Pipeline schedules: made, checked, timed and drawn.", code = [[
local schedule = mx.pipeline.schedule
local s = schedule.check(schedule.make { kind = "1f1b", stages = 2, microbatches = 4 })
schedule.bubble(s) --> 0.2
print(mx.pipeline.draw(s))
]] },
        { "plan", "Searches the best mesh of a run.", code = "mx.plan.run ~= nil --> true" },
        { "roofline", "Rooflines of a run.", code = "mx.roofline.run ~= nil --> true" },
        { "repro", "The published tables.", code = "mx.repro.run ~= nil --> true" },
        { "fit", "Fits constants of simulations.", code = "mx.fit.step ~= nil --> true" },
        { "generations", "Published jobs on generations of chips.", code = "mx.generations.run ~= nil --> true" },
        { "host", "This machine as simulated hardware.", code = "mx.host.hardware ~= nil --> true" },
        { "flags", "XLA flags of command lines.", code = "mx.flags.read ~= nil --> true" },
        { "words", "Keys of MaxText: configs/coming_from_maxtext.md.", code = "mx.words.run ~= nil --> true" },
    },
    { title = "What is different", topics = true,
        { "model", "There is no class of modules. A model is a function and a table of parameters.",
            torch = "Module, model.parameters, Module.parameters, named_parameters, Module.named_parameters, "
            .. "forward, super().__init__", code = [[
local params = {}
local layer = mx.nn.linear(params, "layer", 4, 2)
local function model(x) return layer(x):relu() end
model(mx.ones(3, 4)):size() --> {3, 2}]] },
        { "train or eval mode", "There are no modes. Call mx.dropout only while training.",
            torch = "model.train, model.eval, Module.train, Module.eval",
            code = [[
local function hidden(x, training) return training and mx.dropout(x, { rate = 0.1 }) or x end
hidden(mx.ones(2), false) --> {1, 1}]] },
        { "compile", "Not needed: operations run at once, and fused ones exist.",
            torch = "compile, jit, jit.script, jit.trace",
            code = "mx.gated(mx.ones(2), mx.ones(2), { activation = 'relu' }) --> {1, 1}" },
        { "vmap", "Operations broadcast: stack the inputs, and write the function for all of them.",
            torch = "vmap, func.vmap", code = [[
local function f(x, w) return mx.einsum("...i,...i->...", x, w) end
f(mx.ones(5, 3), mx.ones(5, 3)) --> {3, 3, 3, 3, 3}]] },
        { "control flow", "for, while and if of Lua; a table of tensors is a loop over mx.util.sorted_pairs.",
            torch = "lax.scan, lax.fori_loop, lax.while_loop, lax.cond, while_loop, tree_map, tree_util.tree_map",
            code = [[
local squares = {}
for name, t in mx.util.sorted_pairs { a = mx.ones(2), b = mx.ones(1) } do squares[name] = (t * 3):square() end
squares.a --> {9, 9}]] },
        { "accuracy", "The share of rows whose greatest logit is that of the target; a confusion matrix counts pairs.",
            torch = "accuracy_score, confusion_matrix", code = [[
local logits, y = mx.tensor { { 2, 1 }, { 0, 3 } }, mx.tensor({ 0, 0 }, "i32")
local guess = logits:argmax { dim = 2 }
guess:eq(y):to("f32"):mean():item() --> 0.5
mx.scatter_add(mx.zeros(4), y * 2 + guess, mx.ones(2), { dim = 1 }):view(2, 2) --> {{1, 1}, {0, 0}}]] },
        { "mixed precision", "Pass bf16 tensors, or dtype = \"bf16\", "
            .. "to operations. No scaler of gradients is needed.",
            torch = "autocast, amp.autocast, cuda.amp, GradScaler", code = [[
local x, w = mx.ones({ 2, 4 }, "bf16"), mx.ones(4, 2)
mx.matmul(x, w):dtype() --> bf16]] },
        { "denormals", "All threads take numbers nearer to 0 than the least normal one (1.18e-38 in f32) for 0: "
            .. "many processors compute slowly with them.", torch = "set_flush_denormal", code = [[
(mx.tensor { 1e-30 } * 1e-10):item() --> 0]] },
        { "device", "There is one device for each rank. A simulated pod is chosen by hardware= on the command line.",
            torch = "device, cuda.is_available, cuda.device_count", code = "mx.is_simulated() --> false" },
        { "init_process_group", "mpirun -n 2 build/mxlua script.lua starts the ranks. No call is needed. On several "
            .. "nodes: mpirun -f hosts, or scripts/slurm/README.md.",
            torch = "distributed.init_process_group, torchrun, multiprocessing.spawn, mpi4py, slurm, srun, sbatch, "
                .. "hostfile",
            code = "mx.ranks() >= 1 --> true" },
    },
}
