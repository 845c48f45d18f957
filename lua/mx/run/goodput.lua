--- Goodput: the share of a run's wall time that training steps took, and what took the rest.
--
-- At any moment a run is in one part, so the parts sum to the wall time. It begins when the program starts. A step that
-- an earlier process had completed but not saved is repeated, and does not count as progress. A simulated run has
-- simulated time.

local mx = require "mx"
local util = require "mx.util"

local goodput = {}

-- Parts besides "step", with their names in a summary.
goodput.PARTS = {
    { "start", "start" }, { "checkpoint_restore", "loading" }, { "data_loading", "waiting for data" },
    { "checkpoint_save", "checkpoints" }, { "evaluation", "evaluation" }, { "repeated_steps", "repeated steps" },
    { "other", "other" },
}

---@class mx.Goodput
---@field seconds table<string, number> by part
---@field part string the current one
---@field since number mx.now() at its start
local Goodput = {}
Goodput.__index = Goodput

--- Starts with the part "start". Not collective, as all functions here.
---@return mx.Goodput
function goodput.new()
    local self = setmetatable({ seconds = { step = 0 }, part = "start" }, Goodput)
    self.since = mx.is_simulated() and mx.now() or mx.started()
    for _, part in ipairs(goodput.PARTS) do
        self.seconds[part[1]] = 0
    end
    return self
end

--- Ends the current part and starts another one.
---@param part string
function Goodput:enter(part)
    local now = mx.now()
    self.seconds[self.part] = self.seconds[self.part] + now - self.since
    self.part, self.since = part, now
end

--- Ends a step, of which the given time was spent waiting for data.
---@param waited_s number
function Goodput:ended_step(waited_s)
    local part = self.part
    self:enter("other")
    if part == "step" then
        self.seconds.step = self.seconds.step - waited_s
        self.seconds.data_loading = self.seconds.data_loading + waited_s
    end
end

--- The figures until now.
---@return {wall_time_s: number, goodput: number, badput: table<string, number>} goodput: the share of steps in percent;
---        badput: those of the other parts
function Goodput:figures()
    self:enter(self.part)
    local wall, percent = 0, {}
    for _, seconds in util.sorted_pairs(self.seconds) do
        wall = wall + seconds
    end
    for part, seconds in pairs(self.seconds) do
        percent[part] = wall > 0 and 100 * seconds / wall or 0
    end
    local share = percent.step
    percent.step = nil
    return { wall_time_s = wall, goodput = share, badput = percent }
end

--- The parts of `badput` in words: "start 4.1 %, checkpoints 1.0 %". Parts below 0.05 % are left out.
---@param badput table<string, number>
---@return string
function goodput.text(badput)
    local words = {}
    for _, part in ipairs(goodput.PARTS) do
        local share = badput[part[1]]
        words[#words + 1] = share >= 0.05 and ("%s %.1f %%"):format(part[2], share) or nil
    end
    return #words > 0 and table.concat(words, ", ") or "none"
end

return goodput
