--- A schedule as a picture of text: a row for each stage, time from left to right.

local chart = {}

local WIDTH = 80
local BACKWARD = "abcdefghijklmnopqrstuvwxyz"

-- The letter of an action: the last digit of the microbatch forward, a letter backward; capitals both ways in layers
-- outside the pipeline.
local function mark(action, outside)
    local i = (action.micro - 1) % #BACKWARD + 1
    if action.what == "W" then
        return "="
    elseif action.chunk == outside then
        return BACKWARD:sub(i, i):upper()
    elseif action.what == "F" then
        return tostring(action.micro % 10)
    end
    return BACKWARD:sub(i, i)
end

-- The row of one stage: each column shows what the stage does in the middle of its time.
local function row(actions, seconds, columns, outside)
    local cells, i = {}, 1
    for column = 1, columns do
        local middle = (column - 0.5) * seconds
        while actions[i] and actions[i].stop <= middle do
            i = i + 1
        end
        cells[column] = actions[i] and actions[i].start <= middle and mark(actions[i], outside) or "."
    end
    return table.concat(cells)
end

--- Draws a replay, at most 80 columns wide. If the times are whole units, a unit has a whole number of columns.
---@param replay mx.PipelineReplay
---@param notes? string[] a text for the end of each row
---@param outside? integer the chunk of layers outside the pipeline
---@return string
function chart.draw(replay, notes, outside)
    local label, most = ("stage %d  "):format(#replay.actions), 0
    for _, note in ipairs(notes or {}) do
        most = math.max(most, #note + 2)
    end
    local room, duration = WIDTH - #label - most, replay.duration
    local columns = room
    if duration == math.floor(duration) and duration <= room then
        columns = math.min(3, room // duration) * duration // 1 | 0
    end
    local lines, width = {}, #label - 8
    for stage, actions in ipairs(replay.actions) do
        lines[stage] = ("stage %" .. width .. "d  %s%s"):format(stage,
            row(actions, duration / columns, columns, outside), notes and "  " .. notes[stage] or "")
    end
    lines[#lines + 1] = "digits: forward; letters: backward"
        .. (outside and "; capitals: layers outside" or "")
        .. (table.concat(lines):find("=", 1, true) and "; =: gradients of weights" or "") .. "; .: waits"
    return table.concat(lines, "\n")
end

return chart
