--- Checkpoints: save everything that a run needs to resume, and load it with any number of ranks on any mesh.
--
-- A checkpoint is a folder step_N with a file rank_R.h5 for each rank R, and index.json. The index lists every tensor
-- by its global name, with its dtype, its shape and the elements that each file holds (engine/checkpoint/chunk.h: a box
-- of the tensor, and a range of its elements), but nothing about a mesh. Ranks that hold the same values divide the
-- writing. The folder is named step_N.tmp while it is written, and renamed when every rank's file is on disk, so a
-- step_N is complete.

local mx = require "mx"
local checkpoint_index = require "mx.checkpoint.index"
local buffers_by_key = require "mx.checkpoint.buffers"
local util = require "mx.util"

local checkpoint = { index = checkpoint_index.read, list = checkpoint_index.list }

local SHARED_BYTES = 1 << 20 -- ranks that hold the same values divide the writing from this size on
checkpoint.PARAMETER = "parameters/" -- prefix of a parameter's name
checkpoint.BUFFER = "buffers/" -- before the name of a buffer

local PARAMETER, BUFFER = checkpoint.PARAMETER, checkpoint.BUFFER
local MOMENT = "optimizer/%s/%s" -- moment, parameter

-- An error's message without the script's line, which does not help the user.
local function plain(reason)
    return (tostring(reason):gsub("^[^%s:]+%.lua:%d+: ", ""))
end

-- Checks the options, which are the same for a saver and for loading.
local function check_options(o, required, what)
    util.arguments(o, required, {
        "directory", "params", "buffers", "optimizer", "parallel", "model", "data", "keep", "keep_period", "async",
        "lock",
    }, what)
end

-- ---- agreement between ranks ----

--- Calls fn on every rank. If it raises an error on any rank, all ranks raise the message of the lowest such rank.
--- Collective.
---@param fn function
---@return any ... results of fn
function checkpoint.together(fn, ...)
    local results, ranks = table.pack(pcall(fn, ...)), mx.is_simulated() and 1 or mx.ranks()
    local worst = ranks == 1 and (results[1] and 0 or 1) or mx.scope(function()
        local value = results[1] and 0 or ranks - mx.rank()
        return math.tointeger(mx.all_reduce_(mx.tensor(value), { op = "max" }):item() // 1)
    end)
    if worst == 0 then
        return table.unpack(results, 2, results.n)
    end
    local reason = mx.share_text(not results[1] and tostring(results[2]) or nil, ranks - worst)
    util.refuse("%s", plain(reason))
end

-- ---- what is stored ----

-- All tensors of a run, each a place (mx.Parallel:place) with name and tensor. o.optimizer nil: only the model's.
local function tensors_of(o)
    local list, parallel = {}, o.parallel or mx.parallel.alone
    local function add(stored_name, name, tensor, moment)
        local place = parallel:place(name, tensor, moment)
        place.name, place.tensor = stored_name, tensor
        list[#list + 1] = place
    end
    for name, t in util.sorted_pairs(o.params) do
        add(PARAMETER .. name, name, t)
    end
    for name, t in util.sorted_pairs(o.buffers or {}) do
        add(BUFFER .. name, name, t)
    end
    for name, moments in util.sorted_pairs(o.optimizer and o.optimizer.state or {}) do
        for moment, t in util.sorted_pairs(moments) do
            add(MOMENT:format(moment, name), name, t, o.optimizer.rule.whole and "whole" or "part")
        end
    end
    return list
end

-- The range of a place's elements that this rank writes.
local function share_of(place)
    local bytes = place.count * mx.dtypes[place.tensor:dtype()].bytes
    if place.replicas == 1 then
        return place.first, place.count
    elseif bytes < SHARED_BYTES then
        return place.first, place.replica == 0 and place.count or 0
    end
    local share = -(-place.count // place.replicas)
    share = (share + 1023) // 1024 * 1024
    local skip = math.min(place.count, place.replica * share)
    return place.first + skip, math.min(share, place.count - skip)
end

-- What this rank writes: the values by name, and an entry of the index for each.
local function pieces_of(list, stage)
    local values, chunks = {}, {}
    for _, place in ipairs(list) do
        local first, count = share_of(place)
        if count > 0 or place.count == 0 and place.replica == 0 then
            values[place.name] = mx.scope(function()
                local flat = place.tensor:detach():view(place.tensor:numel())
                local run = mx.narrow(flat, { dim = 1, start = first - place.first + 1, length = count })
                return stage and run:clone() or run
            end):keep()
            chunks[#chunks + 1] = {
                name = place.name, dtype = place.tensor:dtype(), shape = mx.io.array(place.sizes), first = first,
                offset = mx.io.array(place.offset), extent = mx.io.array(place.extent), count = count,
            }
        end
    end
    return values, chunks
end

--- The size of a copy of the values that this rank writes to a checkpoint. Not collective.
---@param o table params, buffers, parallel, optimizer
---@return integer
function checkpoint.staged_bytes(o)
    local bytes = 0
    for _, place in ipairs(tensors_of(o)) do
        local _, count = share_of(place)
        bytes = bytes + count * mx.dtypes[place.tensor:dtype()].bytes
    end
    return bytes
end

-- ---- the index ----

-- Gathers the index entries of all ranks on rank 0; nothing on other ranks. Collective.
local function gather_index(chunks)
    local tensors = {}
    for rank = 0, mx.ranks() - 1 do
        local text = mx.share_text(mx.rank() == rank and mx.io.json_encode(mx.io.array(chunks)) or nil, rank)
        for _, c in ipairs(mx.rank() == 0 and mx.io.json_decode(text) or {}) do
            local entry = tensors[c.name] or { dtype = c.dtype, shape = mx.io.array(c.shape), chunks = {} }
            entry.chunks[#entry.chunks + 1] = {
                rank = rank, offset = mx.io.array(c.offset), extent = mx.io.array(c.extent), first = c.first,
                count = c.count,
            }
            tensors[c.name] = entry
        end
    end
    return tensors
end

-- ---- saving ----

---@class mx.Saver
---@field directory string
---@field pending? table the checkpoint that is being written
---@field saved? integer the step of the last complete checkpoint
---@field stood_still_s? number seconds that the last call of save took
---@field write_s? number seconds from the last such call until the checkpoint was on disk
local Saver = {}
Saver.__index = Saver

--- Saves a run's checkpoints: the parameters, the buffers (mx.nn.buffer), what the optimizer has (moments and steps, by
--- which its schedule goes), the random stream, and where model and data stand if they are given. From its first save
--- on, no other process can save in that directory. Not collective.
---@param o table directory; params, buffers, optimizer, parallel (of a model on a mesh) whose values are stored; model,
---       data (an mx.Decoder, an mx.Data); lock (of the directory, where the caller has it); keep (how many of the
---       newest stay; 0: all), keep_period (every checkpoint of a multiple of so many steps stays, too; 0: none), async
---       (write a copy in the background)
---@return mx.Saver
function checkpoint.saver(o)
    check_options(o, { "directory", "params" }, "mx.checkpoint.saver")
    return setmetatable({ o = o, directory = o.directory, lock = o.lock }, Saver)
end

-- The state of a run besides its tensors.
local function standing(o)
    return {
        optimizer = o.optimizer and { kind = o.optimizer.kind, steps = o.optimizer.steps } or nil,
        passes = o.model and o.model.passes or nil, data = o.data and o.data:state() or nil,
        random = mx.random_state(),
    }
end

--- The current state of a run, for a later save: its steps, its position in the data, its random stream. Not
--- collective.
---@return table
function Saver:standing()
    return standing(self.o)
end

--- Starts saving a step; finishes an earlier save first. Returns when the values may change again. Collective.
---@param step integer
---@param about table state (a plain table that comes back from checkpoint.load as it is now), config, script and
---       script_name (texts), guard, loss (of mx.run), standing (of Saver:standing; nil: as things stand now)
---@param now? boolean write without a copy, and return when it is on disk
---@return integer? step if it is already on disk
function Saver:save(step, about, now)
    local started = mx.now()
    self:wait()
    local o, path, copies = self.o, ("%s/step_%d"):format(self.directory, step), self.o.async and not now
    local temporary = path .. ".tmp"
    checkpoint.together(function()
        if mx.rank() == 0 then
            mx.io.mkdir_p(self.directory)
            self.lock = self.lock or require("mx.run.folder").lock(self.directory, "save in another directory")
            local there = mx.io.about(temporary)
            if there.is_link or there.kind ~= "nothing" then
                mx.io.remove_folder(temporary)
            end
            mx.io.mkdir_p(temporary)
        end
    end)
    local id = mx.share_text(("%d-%x-%s"):format(step, os.time(), tostring({}):match("%x+$")))
    local writer, values, chunks, text
    checkpoint.together(function()
        values, chunks = pieces_of(tensors_of(o), copies)
    end)
    self.tensors = self.tensors or gather_index(chunks) -- the same for every checkpoint of a run
    local stands = about.standing or standing(o)
    local index = {
        step = step, ranks = mx.ranks(), id = id, tensors = self.tensors, state = about.state, guard = about.guard,
        loss = about.loss, optimizer = stands.optimizer, passes = stands.passes, data = stands.data,
        random = stands.random,
        config = about.config or "", script = about.script or "", script_name = about.script_name or "",
        mxlua = mx.version, -- not mx.info(), which would wait for HDF5 and therefore for the writer
    }
    checkpoint.together(function()
        text = mx.rank() == 0 and checkpoint_index.seal(index) -- now, as the caller may change the tables in `about`
    end)
    checkpoint.together(function()
        writer = mx.io.writer(("%s/rank_%d.h5"):format(temporary, mx.rank()), values, { id = id, rank = mx.rank() })
    end)
    self.pending = {
        step = step, path = path, temporary = temporary, writer = writer, index = text, values = values,
    }
    self.started = started
    local saved = not copies and self:wait() or nil
    self.stood_still_s = mx.now() - started
    return saved
end

-- Renames a complete checkpoint to its final name. If the step already has one, that could not be loaded, or the run
-- resumed from an earlier step; it is renamed and kept.
local function commit(self, p)
    self.lock:beat()
    mx.io.write_file_atomic(p.temporary .. "/index.json", p.index)
    if mx.io.exists(p.path) then
        local n = 1
        while mx.io.exists(("%s.replaced-%d"):format(p.path, n)) do
            n = n + 1
        end
        mx.io.replace_folder(p.temporary, p.path, ("%s.replaced-%d"):format(p.path, n))
    else
        mx.io.move_folder(p.temporary, p.path)
    end
    local cleaned, reason = pcall(self.clean, self, p.step) -- the checkpoint is complete even if this fails
    if not cleaned then
        io.stderr:write(("older checkpoints could not be removed: %s\n"):format(plain(reason)))
    end
end

--- Removes the remains of interrupted saves up to `step`, and checkpoints over the limit. Checkpoints of later steps
--- were skipped when this run resumed: they neither count nor are deleted.
---@param step integer
function Saver:clean(step)
    local keep, period = self.o.keep or 0, self.o.keep_period or 0
    for _, name in ipairs(mx.io.list(self.directory)) do
        local cut_off = name:match("^step_(%d+)%.tmp$")
        if cut_off and tonumber(cut_off) <= step then
            mx.io.remove_folder(self.directory .. "/" .. name)
        end
    end
    local newer = 0
    for _, found in ipairs(checkpoint.list(self.directory)) do
        local stays = keep == 0 or found.step > step or newer < keep or period > 0 and found.step % period == 0
        newer = newer + (found.step <= step and 1 or 0)
        if not stays then
            mx.io.move_folder(found.path, found.path .. ".tmp") -- so that a partly removed checkpoint cannot be loaded
            mx.io.remove_folder(found.path .. ".tmp")
        end
    end
end

-- 0: this rank's file is being written; 1: it is complete; 2: it failed.
local function state_of(p)
    if not p.writer:finished() then
        return 0
    end
    p.failure = nil
    local good, reason = pcall(p.writer.wait, p.writer)
    p.failure = not good and reason or nil
    return good and 1 or 2
end

-- The minimum and maximum over the ranks.
local function extremes(value)
    if mx.ranks() == 1 then
        return value, value
    end
    return mx.scope(function()
        local both = mx.all_reduce_(mx.tensor({ value, -value }), { op = "max" }):totable()
        return -both[2], both[1]
    end)
end

-- Ends a save when every rank's file is complete, or one has failed.
local function finish(self, p)
    self.pending = nil
    local good, reason = pcall(checkpoint.together, function()
        p.writer:wait()
    end)
    for _, t in pairs(p.values) do
        t:release() -- now, before Lua collects the handles
    end
    good, reason = pcall(checkpoint.together, function()
        if not good then
            error(reason, 0)
        elseif mx.rank() == 0 then
            commit(self, p)
        end
    end)
    if not good then
        util.refuse("the checkpoint of step %d was not saved: %s. Earlier ones in %s are as they were", p.step,
            plain(reason), self.directory)
    end
    self.saved, self.write_s = p.step, mx.now() - self.started
end

--- To be called after every step: finishes a save whose files are written, and raises an error on all ranks if a file
--- could not be written. Does not wait. Collective while a save is in flight.
---@return integer? step of a checkpoint that has just been completed
function Saver:poll()
    local p = self.pending
    if not p then
        return nil
    end
    local least, most = extremes(state_of(p))
    if least == 1 or most == 2 then
        finish(self, p)
        return p.step
    end
    return nil
end

--- Waits for a save in flight. Collective.
---@return integer? step of a checkpoint that has just been completed
function Saver:wait()
    local p = self.pending
    if p then
        finish(self, p)
        return p.step
    end
    return nil
end

--- Waits for a save in flight, and unlocks the directory, as the end of the program does too. Collective.
---@return integer? step of a checkpoint that has just been completed
function Saver:close()
    local saved = self:wait()
    if self.lock and not self.o.lock then
        self.lock:release()
        self.lock = nil
    end
    return saved
end

-- ---- loading ----

local function text_of(shape)
    return "(" .. table.concat(shape, ", ") .. ")"
end

-- The entry of a wanted tensor in the index; refuses another shape.
local function stored(index, place, path)
    local entry = index.tensors[place.name]
    if table.concat(entry.shape, "x") ~= table.concat(place.sizes, "x") then
        util.refuse("%s: '%s' has shape %s, that of this run %s", path, place.name, text_of(entry.shape),
            text_of(place.sizes))
    end
    return entry
end

--- Opens a rank's file of a checkpoint; refuses a file of another checkpoint. Not collective.
---@param index table of checkpoint.index
---@param path string the folder
---@param rank integer
---@return any of mx.io.h5_open
function checkpoint.open_rank_file(index, path, rank)
    local file = mx.io.h5_open(("%s/rank_%d.h5"):format(path, rank))
    if file:attributes().id ~= index.id then
        util.refuse("%s/rank_%d.h5 belongs to another checkpoint", path, rank)
    end
    return file
end

local function same_run(a, b)
    return a.first == b.first and a.count == b.count and table.concat(a.offset, ",") == table.concat(b.offset, ",")
        and table.concat(a.extent, ",") == table.concat(b.extent, ",")
end

--- Reads the elements of a place that a chunk of the file holds into `out` (flat, of the stored dtype). Not collective.
---@param file any of checkpoint.open_rank_file
---@param entry table the tensor's, in the index
---@param place table name, offset, extent, first, count: the wanted elements
---@param chunk table one of entry.chunks
---@param out any
---@return integer elements
function checkpoint.read_chunk(file, entry, place, chunk, out)
    if same_run(place, chunk) then
        file:read_into(place.name, out)
        return place.count
    end
    return mx.scope(function()
        local elements, from, to = mx.io.chunk_overlap(entry.shape, place, chunk)
        if elements > 0 then
            local values = file:read(place.name, { first = from - chunk.first + 1, rows = to - from })
            mx.io.chunk_copy(entry.shape, place, out, chunk, values, from)
        end
        return elements
    end)
end

-- Opens each file that holds wanted values once, and reads these values into their tensors.
local function read_all(index, path, wanted)
    local by_rank = {}
    for _, place in ipairs(wanted) do
        for _, chunk in ipairs(place.entry.chunks) do
            if mx.io.chunk_overlap(place.entry.shape, place, chunk) > 0 then
                by_rank[chunk.rank] = by_rank[chunk.rank] or {}
                table.insert(by_rank[chunk.rank], { place = place, chunk = chunk })
            end
        end
    end
    for rank, parts in util.sorted_pairs(by_rank) do
        local file <close> = checkpoint.open_rank_file(index, path, rank)
        for _, part in ipairs(parts) do
            local place = part.place
            place.got = place.got + checkpoint.read_chunk(file, place.entry, place, part.chunk, place.out)
        end
    end
end

-- Whether a stored tensor belongs to another stage of the pipeline.
local function is_elsewhere(o, stored_name)
    local name = stored_name:match("^parameters/(.*)$") or stored_name:match("^optimizer/[^/]*/(.*)$")
    return name and o.parallel and not o.parallel:holds(name)
end

local function load_here(index, path, o)
    local wanted = tensors_of(o)
    local known, missing, here, first_missing = {}, {}, {}, nil
    for _, place in ipairs(wanted) do
        known[place.name] = true
        if index.tensors[place.name] then
            here[#here + 1] = place
        else
            missing[place.name], first_missing = place.tensor, first_missing or place.name
        end
    end
    local refused = o.optimizer and first_missing or buffers_by_key.start(path, missing)
    if refused then
        buffers_by_key.refuse(index, path, refused, "no tensor '%s'")
    end
    for _, place in ipairs(here) do
        place.entry, place.got = stored(index, place, path), 0
        local flat = place.tensor:detach():view(place.tensor:numel()):keep()
        place.flat = flat
        place.out = place.entry.dtype == flat:dtype() and flat or mx.zeros({ place.count }, place.entry.dtype):keep()
    end
    for name in util.sorted_pairs(index.tensors) do
        local unwanted = not o.optimizer and (name:find("^optimizer/") or buffers_by_key.may_drop(name))
        if not known[name] and not is_elsewhere(o, name) and not unwanted then
            buffers_by_key.refuse(index, path, name, "a tensor '%s' that this run lacks")
        end
    end
    read_all(index, path, here)
    for _, place in ipairs(here) do
        if place.got ~= place.count then
            util.refuse("%s has %d of the %d elements of '%s' that this rank needs", path, place.got, place.count,
                place.name)
        end
        if place.out ~= place.flat then
            mx.copy(place.flat, place.out)
            place.out:release()
        end
    end
end

-- Loads the values of a checkpoint. Collective.
local function load_values(path, o)
    local index = checkpoint.index(path)
    local saved = index.optimizer
    if o.optimizer and saved and saved.kind ~= o.optimizer.kind then
        util.refuse("%s was saved with opt_type=%s, this run has %s; load_parameters_path=%s takes the parameters "
            .. "alone", path, saved.kind, o.optimizer.kind, path)
    end
    mx.no_grad(function()
        checkpoint.together(mx.scope, function()
            load_here(index, path, o)
        end)
    end)
    return index
end

-- Restores the state of a checkpoint's run.
local function stand(index, o)
    if o.optimizer and index.optimizer then
        o.optimizer.steps = index.optimizer.steps
    end
    if o.model and index.passes then
        o.model.passes = index.passes
    end
    if o.data and index.data then
        o.data:restore(index.data)
    end
    if index.random and o.optimizer then -- not if only parameters are loaded
        mx.random_state(index.random)
    end
    return index
end

--- Fills parameters, buffers, and the optimizer's state unless that is nil, from a checkpoint that any number of ranks
--- on any mesh has saved. Other dtypes are converted. The optimizer's steps, and with them its schedule, are those of
--- the checkpoint, and so is the random stream; so are the place in the data and the passes of the model, where these
--- are given. Where a rank cannot read what it needs, all raise; values are then partly changed. Collective.
---@param path string the folder step_N
---@param o table params, buffers, optimizer, parallel (of a model on a mesh), model, data
---@return table index whose `state` is what was saved with it
function checkpoint.load(path, o)
    check_options(o, { "params" }, "mx.checkpoint.load")
    return stand(load_values(path, o), o)
end

--- Loads the newest intact checkpoint of a folder, and reports what is wrong with newer ones. nil if there is no
--- checkpoint; an error if there are some but none is intact. Nothing is deleted. Collective.
---@param directory string
---@param o table of checkpoint.load
---@param say? fun(format: string, ...) receives the reports; nil: they are printed
---@return table? index, string? path
function checkpoint.load_newest(directory, o, say)
    say = say or function(format, ...)
        mx.metrics.say("%s", format:format(...))
    end
    local text = mx.share_text(mx.rank() == 0 and mx.io.json_encode(mx.io.array(checkpoint.list(directory))) or nil)
    local found = mx.io.json_decode(text)
    for _, one in ipairs(found) do
        local good, index = pcall(load_values, one.path, o)
        if good then
            return stand(index, o), one.path
        end
        say("%s cannot be used: %s", one.path, index)
    end
    if #found > 0 then
        util.refuse("none of the %d checkpoint%s in %s can be used; nothing was changed there. run_name=OTHER starts a "
            .. "new run", #found, #found == 1 and "" or "s", directory)
    end
    return nil
end

--- Loads the checkpoint at a path (a folder step_N), or the newest intact one of a run's folder. nil if there is none.
--- Collective.
---@param path string
---@param o table of checkpoint.load
---@param say fun(format: string, ...) receives reports of damage
---@return table? index, string? path
function checkpoint.load_path(path, o, say)
    path = path:gsub("(.)/+$", "%1")
    if path:match("step_%d+$") then
        return checkpoint.load(path, o), path
    end
    return checkpoint.load_newest(path, o, say)
end

return util.module(checkpoint, "mx.checkpoint")
