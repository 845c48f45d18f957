-- Lists, verifies, merges and measures checkpoints:
--
--     build/mxlua scripts/checkpoint.lua list checkpoints/RUN            lists them, and whether each is complete
--     build/mxlua scripts/checkpoint.lua verify checkpoints/RUN          reads all of them and checks every checksum
--     build/mxlua scripts/checkpoint.lua verify checkpoints/RUN/step_N   the same for one
--     build/mxlua scripts/checkpoint.lua merge checkpoints/RUN/step_N to=parameters.h5
--     build/mxlua scripts/checkpoint.lua merge checkpoints/RUN to=all.h5 all=true    newest, with optimizer state
--     mpirun -n 2 build/mxlua scripts/checkpoint.lua measure FOLDER [size=1.0]
--
-- merge joins the files of all ranks into one HDF5 file, in the form of the parameters.h5 that scripts/train.lua saves.
--
-- measure saves a test state of `size` GiB in FOLDER. Every rank holds the whole state and writes its share. It
-- compares the time for which saving blocks training with the time of one copy in memory, and the time until the
-- checkpoint is on disk with a plain write of the same bytes.
--
-- list, verify and merge run as one process.

local mx = require "mx"
local files = require "mx.checkpoint.files"
local util = require "mx.util"

local VERBS = { "list", "verify", "merge", "measure" }

local verb, path = arg[1], arg[2]
if not util.contains(VERBS, verb) or not path or path:find("=") then
    util.refuse("usage: mxlua scripts/checkpoint.lua list|verify|merge|measure FOLDER [to=FILE] [all=true] "
        .. "[size=GiB]%s", verb and not util.contains(VERBS, verb) and ("; got '%s'"):format(verb) or "")
end
local o = mx.config.options(table.move(arg, 3, #arg, 1, {}), { to = "", all = false, size = 1.0 })
if mx.ranks() > 1 and verb ~= "measure" then
    util.refuse("scripts/checkpoint.lua is for one process, not for %d ranks", mx.ranks())
end
path = require("mx.config.paths").path(path:gsub("(.)/+$", "%1"), "FOLDER")

-- The checkpoints at a path, newest first: a folder step_N, or a folder of those.
local function checkpoints()
    local step = path:match("step_(%d+)$")
    local found = step and { { step = tonumber(step), path = path } } or mx.checkpoint.list(path)
    if #found == 0 then
        util.refuse("there is no checkpoint in '%s': expected folders step_N, or a folder step_N itself", path)
    end
    return found
end

-- A progress line on stderr that is replaced as work proceeds. The first second prints nothing.
local function progress(what)
    local started, last = mx.now(), 0
    return function(done, of)
        local now = mx.now()
        if now - started > 1 and (now - last > 0.2 or done == of) then
            last = now
            io.stderr:write(("\r%s: %d of %d tensors%s"):format(what, done, of, done == of and "\n" or ""))
        end
    end
end

local function size_of(folder)
    local bytes = 0
    for _, name in ipairs(mx.io.list(folder)) do
        local file = io.open(folder .. "/" .. name, "rb")
        bytes = bytes + (file and file:seek("end") or 0)
        if file then
            file:close()
        end
    end
    return bytes
end

local function list()
    print(("%10s  %5s  %10s  %7s  %s"):format("step", "ranks", "size", "tensors", "folder"))
    for _, one in ipairs(checkpoints()) do
        local good, index = pcall(mx.checkpoint.index, one.path)
        if good then
            print(("%10s  %5d  %10s  %7d  %s"):format(util.thousands(index.step), index.ranks,
                util.bytes(size_of(one.path)), #util.sorted_keys(index.tensors), one.path))
        else
            print(("%10s  damaged: %s"):format(util.thousands(one.step), index))
        end
    end
end

local function verify()
    local bad = 0
    for _, one in ipairs(checkpoints()) do
        local good, index, elements = pcall(files.verify, one.path, progress(one.path))
        if good then
            print(("%s: good: %d tensors, %s values, saved by %d rank%s"):format(one.path,
                #util.sorted_keys(index.tensors), util.thousands(elements), index.ranks,
                index.ranks == 1 and "" or "s"))
        else
            bad = bad + 1
            print(("%s: DAMAGED: %s"):format(one.path, index))
        end
    end
    if bad > 0 then
        util.refuse("%d checkpoint%s damaged", bad, bad == 1 and " is" or "s are")
    end
end

local function merge()
    if o.to == "" then
        util.refuse("merge needs to=FILE: the HDF5 file to write")
    end
    local from = checkpoints()[1].path
    local tensors = files.merge(from, o.to, { all = o.all, progress = progress(o.to) })
    print(("%s: %d tensors of %s%s"):format(o.to, tensors, from, o.all and ", optimizer state included" or ""))
end

-- ---- measure ----

-- A test state of about so many bytes: parameters, and an optimizer with two moments of the same sizes.
local function made_up_state(bytes)
    local params, rows = {}, bytes // (3 * 24 * 4 * 1024)
    for i = 1, 24 do
        params[("layer%03d.weight"):format(i)] = mx.randn({ shape = { rows, 1024 }, seed = i }):keep()
    end
    return params, mx.optim.adamw(params)
end

-- A function that copies the same tensors in the same pieces and returns the seconds it took. The target memory has
-- been written to before.
local function copier(params, optimizer)
    local copies = {}
    local function copy()
        for name, t in util.sorted_pairs(params) do
            local state = optimizer.state[name]
            for i, from in ipairs({ t, state.m, state.v }) do
                local key = name .. i
                copies[key] = copies[key] or mx.zeros(from:size(), "f32"):keep()
                mx.copy(copies[key], from)
            end
        end
    end
    copy()
    return function()
        mx.barrier()
        local started = mx.now()
        copy()
        mx.barrier()
        return mx.now() - started
    end
end

-- Seconds that dd takes to write the same number of bytes and sync them; each rank writes its own file.
local function write_seconds(bytes)
    local to, mib = ("%s/plain-%d"):format(path, mx.rank()), bytes // (1 << 20)
    mx.barrier()
    local started = mx.now()
    local done = os.execute(("dd if=/dev/zero of='%s' bs=4M count=%d iflag=count_bytes conv=fsync 2>/dev/null"):format(
        to:gsub("'", "'\\''"), mib << 20))
    mx.barrier()
    local seconds = mx.now() - started
    os.remove(to)
    if not done then
        util.refuse("no %d MiB could be written to '%s'", mib, path)
    end
    return seconds
end

local function measure()
    if o.size <= 0 or o.size > 1e6 then
        util.refuse("size=%g: expected GiB for each rank, above 0, at most 1e6", o.size)
    end
    mx.checkpoint.together(mx.io.mkdir_p, path)
    local params, optimizer = made_up_state(math.floor(o.size * 2 ^ 30))
    local what = { params = params, optimizer = optimizer, directory = path, async = true }
    local bytes = mx.checkpoint.staged_bytes(what)
    mx.metrics.say("%d rank%s, %s each; medians of seven", mx.ranks(), mx.ranks() == 1 and "" or "s",
        util.bytes(bytes))
    local copies, stands, writes, plain = {}, {}, {}, {}
    local saver, copy_seconds = mx.checkpoint.saver(what), copier(params, optimizer)
    for i = 0, 7 do -- round 0 does not count: its copy gets fresh memory from the system
        plain[i] = write_seconds(bytes)
        copies[i] = i % 2 == 0 and copy_seconds() or nil
        saver:save(1, { state = mx.io.array {} })
        saver:wait()
        stands[i], writes[i] = saver.stood_still_s, saver.write_s - saver.stood_still_s
        copies[i] = copies[i] or copy_seconds() -- alternately before and after the save, each time after a write
        mx.checkpoint.together(function()
            if mx.rank() == 0 then
                mx.io.remove_folder(path .. "/step_1")
            end
        end)
    end
    local function rate(seconds)
        return bytes * mx.ranks() / seconds / 1e9
    end
    local copy, stand = util.quantile(copies, 0.5), util.quantile(stands, 0.5)
    local write, dd = util.quantile(writes, 0.5), util.quantile(plain, 0.5)
    mx.metrics.say("one copy in memory        %8.3f s %8.2f GB/s", copy, rate(copy))
    mx.metrics.say("training stands still     %8.3f s %8.2f GB/s  %.2f times the copy", stand, rate(stand),
        stand / copy)
    mx.metrics.say("  when first saved        %8.3f s", stands[0])
    mx.metrics.say("plain write, synced (dd)  %8.3f s %8.2f GB/s", dd, rate(dd))
    mx.metrics.say("checkpoint on disk        %8.3f s %8.2f GB/s  %.0f %% of the plain write", write, rate(write),
        100 * dd / write)
end

({ list = list, verify = verify, merge = merge, measure = measure })[verb]()
