-- Looks at checkpoints, without the run that saved them:
--
--     build/mxlua scripts/checkpoint.lua list checkpoints/RUN            what is there, and whether it is whole
--     build/mxlua scripts/checkpoint.lua verify checkpoints/RUN          reads all of it and checks every checksum
--     build/mxlua scripts/checkpoint.lua verify checkpoints/RUN/step_N   of one
--     build/mxlua scripts/checkpoint.lua merge checkpoints/RUN/step_N to=parameters.h5
--     build/mxlua scripts/checkpoint.lua merge checkpoints/RUN to=all.h5 all=true    the newest; optimizer state, too
--
-- merge puts what the ranks wrote together in one HDF5 file as scripts/train.lua saves parameters at its end. One
-- process.

local mx = require "mx"
local util = require "mx.util"

local VERBS = { "list", "verify", "merge" }

local verb, path = arg[1], arg[2]
if not util.contains(VERBS, verb) or not path or path:find("=") then
    util.refuse("usage: mxlua scripts/checkpoint.lua list|verify|merge FOLDER [to=FILE] [all=true]%s",
        verb and not util.contains(VERBS, verb) and ("; got '%s'"):format(verb) or "")
end
local o = mx.config.options(table.move(arg, 3, #arg, 1, {}), { to = "", all = false })
if mx.ranks() > 1 then
    util.refuse("scripts/checkpoint.lua is for one process, not for %d ranks", mx.ranks())
end
path = path:gsub("(.)/+$", "%1")

-- The checkpoints that a path means, the newest first.
local function checkpoints()
    local step = path:match("step_(%d+)$")
    local found = step and { { step = tonumber(step), path = path } } or mx.checkpoint.list(path)
    if #found == 0 then
        util.refuse("there is no checkpoint in '%s': expected folders step_N, or such a folder itself", path)
    end
    return found
end

-- A line that says how far we are, replaced as we go; nothing in the first second, or where it goes into a file.
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
        local good, index, elements = pcall(mx.checkpoint.verify, one.path, progress(one.path))
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
    local tensors = mx.checkpoint.merge(from, o.to, { all = o.all, progress = progress(o.to) })
    print(("%s: %d tensors of %s%s"):format(o.to, tensors, from, o.all and ", optimizer state included" or ""))
end

({ list = list, verify = verify, merge = merge })[verb]()
