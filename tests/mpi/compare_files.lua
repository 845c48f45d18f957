-- compare_files.lua A B [C]: prints "equal" when two HDF5 files, or the checkpoints B and C beside A, hold the same
-- bits.
local mx = require "mx"

local function tensors(path)
    if path:match("step_%d+$") then
        local to = os.tmpname()
        require("mx.checkpoint.files").merge(path, to, { all = true })
        local all = mx.io.h5_read(to)
        os.remove(to)
        return all
    end
    return (mx.io.h5_read(path))
end

local a, b = tensors(arg[#arg - 1]), tensors(arg[#arg])
local names = {}
for name in pairs(a) do
    names[name] = true
end
for name in pairs(b) do
    names[name] = true
end
local n = 0
for name in pairs(names) do
    assert(a[name] and b[name], name .. " is missing in one")
    local x, y = a[name]:totable(), b[name]:totable()
    local function compare(p, q)
        if type(p) == "table" then
            for i = 1, math.max(#p, #q) do
                compare(p[i], q[i])
            end
        else
            assert(p == q, ("%s: %s and %s"):format(name, p, q))
            n = n + 1
        end
    end
    compare(x, y)
end
print(("equal: %d values"):format(n))
