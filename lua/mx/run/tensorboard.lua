--- Writes metrics for TensorBoard: an event file of scalars.
--
-- The file is a sequence of TFRecords (u64 length, masked CRC-32C of it, data, masked CRC-32C of that), each an Event
-- of TensorFlow's event.proto in protocol buffers' wire format. Formats:
-- https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow/core/util/event.proto,
-- framework/summary.proto.

local mx = require "mx"

local util = require "mx.util"

local tensorboard = {}

local LATEST = 1 << 40 -- a larger number is not a time

-- ---- protocol buffers: a field's key is its number and wire type ----

local VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

local function varint(n)
    local bytes = {}
    repeat
        local low = n & 0x7f
        n = n >> 7
        bytes[#bytes + 1] = string.char(n ~= 0 and low | 0x80 or low)
    until n == 0
    return table.concat(bytes)
end

local function field(number, kind, value)
    return varint(number << 3 | kind) .. value
end

local function text(number, value)
    return field(number, BYTES, varint(#value) .. value)
end

-- Event: wall_time 1 (double), step 2 (int64), file_version 3 (string), summary 5. SessionLog 7: status 1.
local function event(time, step, rest)
    return field(1, FIXED64, ("<d"):pack(time)) .. field(2, VARINT, varint(step)) .. rest
end

-- Summary: value 1, each with tag 1 and simple_value 2 (float).
local function summary(values)
    local list = {}
    for i, value in ipairs(values) do
        list[i] = text(1, text(1, value[1]) .. field(2, FIXED32, ("<f"):pack(value[2])))
    end
    return text(5, table.concat(list))
end

-- ---- TFRecord ----

local function masked(data)
    local crc = mx.io.crc32c(data)
    return ("<I4"):pack(((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)
end

local function record(data)
    local length = ("<I8"):pack(#data)
    return length .. masked(length) .. data .. masked(data)
end

---@class mx.EventFile
local EventFile = {}
EventFile.__index = EventFile

--- Starts an event file in a folder, for a run that continues after `step`. TensorBoard then hides later steps of
--- earlier files in the folder. Not collective: one rank writes.
---@param directory string
---@param step integer 0 for a new run
---@return mx.EventFile
function tensorboard.open(directory, step)
    mx.io.mkdir_p(directory)
    if mx.io.about(directory).is_link then
        util.refuse("'%s' is a symbolic link, and a run writes into its own folder only: remove the link", directory)
    end
    -- TensorBoard reads the files of a folder in the order of their names, so names must increase even if the clock was
    -- set back.
    local pattern, time, n = directory .. "/events.out.tfevents.%010d.mxlua.%04d", os.time(), 0
    for _, name in ipairs(mx.io.list(directory)) do
        local its_time, its_n = name:match("^events%.out%.tfevents%.(%d+)%.mxlua%.(%d+)$")
        its_time, its_n = math.tointeger(tonumber(its_time)), math.tointeger(tonumber(its_n))
        if its_time and its_n and its_time >= time and its_time < LATEST then
            time, n = its_time, (its_time > time and 0 or n)
            n = math.max(n, its_n + 1)
        end
    end
    local path = pattern:format(time, n)
    local file = mx.io.open_log(path, { own = true })
    local self = setmetatable({ file = file, path = path }, EventFile)
    self:write(event(time, step, text(3, "brain.Event:2")))
    if step > 0 then
        self:write(event(time, step + 1, text(7, field(1, VARINT, varint(1))))) -- SessionLog.START
    end
    return self
end

function EventFile:write(data)
    self.file:bytes(record(data))
end

--- Adds the scalars of a step.
---@param step integer
---@param values {[1]: string, [2]: number}[] tag and value
function EventFile:scalars(step, values)
    if #values > 0 then
        self:write(event(os.time(), step, summary(values)))
    end
end

function EventFile:close()
    self.file:close()
end

return util.module(tensorboard, "mx.tensorboard")
