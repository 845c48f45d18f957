--- The folder of a run: locks it for one process, checks that all ranks see it, and writes its files except
--- checkpoints.
--
-- Files in the folder are replaced by renaming, or opened without following symbolic links. So a folder that somebody
-- else has prepared cannot redirect writes to other files.

local mx = require "mx"
local util = require "mx.util"

local run_folder = {}

local LOCK = "run.lock"
local FILES = { "config.yml", "script.lua", "log.txt", "metrics.jsonl", "heartbeat.json", "parameters.h5" }
local BEAT_S = 10 -- least time between two updates of the lock that show that its holder is alive
local PATIENCE_S = 3 -- a shared file system may show a new file late

---@class mx.RunFolder
---@field path string
---@field lock? any of mx.io.lock, on rank 0
---@field events? mx.EventFile
local RunFolder = {}
RunFolder.__index = RunFolder

--- Takes the lock of an existing folder, or raises an error that names the holder. For one rank.
---@param path string
---@param hint? string what the user can do instead of waiting
---@return any of mx.io.lock
function run_folder.lock(path, hint)
    local lock, note = mx.io.lock(path .. "/" .. LOCK, hint or "take another run_name")
    if note ~= "" then
        mx.metrics.say("%s: taken over", note)
    end
    return lock
end

-- Refuses a folder that has files with these names but no config of a run.
local function check_owner(path)
    local config = path .. "/config.yml"
    if mx.io.exists(config) then
        mx.outputs.check(config, "config", "the run's config")
        mx.outputs.check(path .. "/parameters.h5", "parameters", "the run's parameters")
        return
    end
    for _, name in ipairs(FILES) do
        if mx.io.exists(path .. "/" .. name) then
            util.refuse("%s has a file %s, which a run would replace, and no config.yml of a run: take another "
                .. "run_name or base_output_directory", path, name)
        end
    end
end

local function host_name()
    local file = io.open("/proc/sys/kernel/hostname")
    local name = file and file:read("l") or "unknown"
    if file then
        file:close()
    end
    return name
end

-- Whether this rank sees the lock with that id in the folder.
local function sees(path, id)
    local started = mx.now()
    repeat
        local good, text = pcall(mx.io.read_file, path .. "/" .. LOCK)
        if good and text:find(id, 1, true) then
            return true
        end
        pcall(mx.io.list, path) -- makes a network file system look again
    until mx.now() - started > PATIENCE_S
    return false
end

-- The ranks that do not see the lock of rank 0, with their hosts; nil if all see it. Collective.
local function blind_ranks(path, id)
    local mine = sees(path, id)
    local missing = mx.scope(function()
        return mx.all_reduce_(mx.tensor(mine and 0 or 1), { op = "max" }):item()
    end)
    if missing == 0 then
        return nil
    end
    local list = {}
    for rank = 0, mx.ranks() - 1 do
        local host = mx.share_text(mx.rank() == rank and not mine and host_name() or nil, rank)
        list[#list + 1] = host and ("rank %d (%s)"):format(rank, host) or nil
    end
    return list
end

local function check_shared(self)
    if mx.ranks() == 1 then
        return
    end
    local id = mx.share_text(self.lock and self.lock:id() or nil)
    local blind = blind_ranks(self.path, id)
    if blind then
        self:release()
        local more = #blind > 8 and (" and %d more"):format(#blind - 8) or ""
        util.refuse("base_output_directory: %s is not one folder for all ranks: %s%s cannot see what rank 0 (%s) "
            .. "writes there. Choose a directory of a file system that all hosts share", self.path,
            table.concat(blind, ", ", 1, math.min(8, #blind)), more, mx.share_text(host_name()))
    end
end

-- If a process was killed between two renames, restores the name of the checkpoint that it was replacing.
local function repair(path)
    local latest = {}
    for _, name in ipairs(mx.io.list(path)) do
        local step, n = name:match("^(step_%d+)%.replaced%-(%d+)$")
        if step and not mx.io.exists(path .. "/" .. step) then
            latest[step] = math.max(latest[step] or 0, math.tointeger(n) or 0)
        end
    end
    for step, n in util.sorted_pairs(latest) do
        mx.io.move_folder(("%s/%s.replaced-%d"):format(path, step, n), path .. "/" .. step)
    end
end

--- Locks a run's folder before anything is written there. Refuses ranks whose configs differ, and a folder that another
--- process is writing to, that is not a run's, or that some rank does not see. Another call for the same config returns
--- the same object. nil if the run does not write a folder. Collective.
---@param config table
---@return mx.RunFolder?
function run_folder.claim(config)
    local hidden = getmetatable(config)
    mx.config.check_alike(config)
    if not config.enable_checkpointing or mx.is_simulated() then
        return nil
    end
    local path, before = mx.train.directory(config), hidden.run_folder
    if before and before.path == path and not before.released then
        return before
    end
    local self = setmetatable({ path = path, config = config, beat_at = 0, locked_at = 0 }, RunFolder)
    local others = {}
    for i, name in ipairs(FILES) do
        others[i] = { name = "the run's " .. name, path = self.path .. "/" .. name }
    end
    mx.checkpoint.together(function()
        if mx.rank() == 0 then
            mx.io.mkdir_p(self.path)
            check_owner(self.path)
            self.lock = run_folder.lock(self.path)
            repair(self.path)
        end
    end)
    mx.outputs.check_config(config, others)
    check_shared(self)
    hidden.run_folder = self
    return self
end

--- Writes the config and the script, and opens the files to which the run appends. Collective.
---@param step integer the last step before this process continues
---@param script string text of the script
function RunFolder:open(step, script)
    mx.checkpoint.together(function()
        if mx.rank() == 0 then
            mx.io.write_file_atomic(self.path .. "/config.yml", mx.config.dump(self.config))
            mx.io.write_file_atomic(self.path .. "/script.lua", script)
            mx.metrics.log_to(mx.io.open_log(self.path .. "/log.txt", { own = true }))
            if self.config.enable_tensorboard then
                self.events = mx.tensorboard.open(self.path .. "/tensorboard", step)
            end
        end
    end)
end

--- Shows on rank 0 that the run is alive: updates the lock's time, and heartbeat.json at most every heartbeat_period_s.
---@param row table content of the file; time and ranks are added
---@param now? boolean update the file at once
function RunFolder:beat(row, now)
    local period, time = self.config.heartbeat_period_s, mx.now()
    if mx.rank() > 0 or self.released then
        return
    end
    if now or time - self.locked_at >= BEAT_S then
        self.locked_at = time
        util.attempt(self.lock.beat, self.lock)
    end
    if period > 0 and (now or time - self.beat_at >= period) and not self.is_mute then
        self.beat_at = time
        row.time, row.ranks = os.time(), mx.ranks()
        local text = mx.io.json_encode(row) .. "\n"
        self.is_mute = not mx.outputs.beside("heartbeat.json cannot be written", mx.io.write_file_atomic,
            self.path .. "/heartbeat.json", text, { sync = false })
    end
end

--- Adds the scalars of a step to the TensorBoard file. Not collective.
---@param step integer
---@param values {[1]: string, [2]: number}[]
function RunFolder:write_events(step, values)
    if self.events and not mx.outputs.beside("TensorBoard's file cannot be written", self.events.scalars, self.events,
        step, values) then
        self.events = nil
    end
end

--- Closes the files and unlocks the folder. May be called again. Not collective.
function RunFolder:release()
    if self.events then
        self.events:close()
    end
    mx.metrics.log_to(nil)
    if self.lock then
        self.lock:release()
    end
    self.events, self.lock, self.released = nil, nil, true
end

return run_folder
