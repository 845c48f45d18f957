--- What tests of collectives share: values of each rank that every rank can work out, and what each operation makes of
-- them.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()
-- More ranks than the cores of a small machine, or messages among them: large cases are smaller then.
local MANY = ranks > 4 or os.getenv "MXLUA_NODE_RANKS" ~= nil

local DTYPES = { "f32", "bf16", "i32", "u8" }
local WIDE = { f32 = true, i32 = true } -- these hold large integers

-- ---- values ----

-- Moved values are below MOST, and so is the sum of those that are added: bf16 and u8 hold them exactly.
local MOST = 251

--- Element i (from 0) of rank r. Where the dtype has room it also counts, so that an element that goes astray shows.
local function element(r, i, limit, dtype)
    local value = (i * (2 * r + 3) + 11 * r) % limit
    return WIDE[dtype] and value + i or value
end

--- n elements value(start), value(start + 1) and so on, of this period, plus `ramp` times the element's number.
local function series(start, n, period, value, ramp, dtype)
    local row = {}
    for i = 1, period do
        row[i] = value(start + i - 1)
    end
    local rows = (n + period - 1) // period
    local t = mx.zeros({ rows, period }):add(mx.tensor(row)):reshape({ rows * period })
    t = t:narrow { dim = 1, start = 1, length = n }
    if WIDE[dtype] then
        t = t:add(mx.arange { n = n, start = start * ramp, step = ramp })
    end
    return t:to(dtype)
end

local function fail_at(what, got, want, differs)
    local at = mx.argmax(differs:reshape({ differs:numel() })):item() + 1
    local function show(t)
        return tostring(t:reshape({ t:numel() }):get(at))
    end
    lu.fail(("%s: element %d of %d is %s, expected %s"):format(what, at, got:numel(), show(got), show(want)))
end

local function assert_same(got, want, what)
    lu.assertEquals(got:dtype(), want:dtype(), what)
    lu.assertEquals(got:size(), want:size(), what)
    local differs = mx.ne(got, want)
    if differs:max():item() ~= 0 then
        fail_at(what, got, want, differs)
    end
end

local function concat(list)
    local full = {}
    for _, t in ipairs(list) do
        full[#full + 1] = t:numel() > 0 and t or nil
    end
    return #full == 1 and full[1] or mx.concat(full, { dim = 1 })
end

-- ---- groups ----

---@class Group
---@field members integer[] world ranks, ascending
---@field n integer
---@field me integer place among them, from 0
---@field axis string|string[]|nil as the collectives take it

local function new_group(members, axis)
    local g = { members = members, n = #members, axis = axis }
    for i, r in ipairs(members) do
        g.me = r == rank and i - 1 or g.me
    end
    return g
end

local function everybody()
    local members = {}
    for r = 0, ranks - 1 do
        members[r + 1] = r
    end
    return new_group(members)
end

local ALL = everybody()

--- The values of one case: of a member (from 0), and of the sum, the mean and the maximum over the group.
local function new_values(g, dtype, limit)
    local v = {}
    function v.of(m, start, n)
        local r = g.members[m + 1]
        return series(start, n, limit, function(i) return element(r, i, limit) end, 1, dtype)
    end
    function v.sum(start, n)
        return series(start, n, limit, function(i)
            local total = 0
            for _, r in ipairs(g.members) do
                total = total + element(r, i, limit)
            end
            return total
        end, g.n, dtype)
    end
    function v.max(start, n)
        return series(start, n, limit, function(i)
            local most = 0
            for _, r in ipairs(g.members) do
                most = math.max(most, element(r, i, limit))
            end
            return most
        end, 1, dtype)
    end
    function v.each(start_of, n)
        local parts = {}
        for m = 0, g.n - 1 do
            parts[m + 1] = v.of(m, start_of(m), n)
        end
        return concat(parts)
    end
    return v
end

-- ---- the operations along dimension 1, n elements a part: what a member brings, and what it then has ----

local function whole(v, g, n)
    return v.of(g.me, 0, n)
end

local function all_parts(v, g, n)
    return v.of(g.me, 0, n * g.n)
end

local function swapped(v, g, n)
    return v.each(function() return g.me * n end, n)
end

local function from_left(v, g, n, options)
    return v.of((g.me - options.shift) % g.n, 0, n)
end

local function from_root(v, _, n, options)
    return v.of(options.root, 0, n)
end

local function shifts(g, k)
    return { shift = ({ 1, -1, g.n - 1, 2, g.n, 0, 1 - 3 * g.n })[k % 7 + 1] }
end

local function roots(g, k)
    return { root = k % g.n }
end

local OPERATIONS = {
    all_reduce = {
        sums = true, whole = true, brings = whole, brings_ = whole,
        makes = function(v, _, n) return v.sum(0, n) end,
    },
    all_gather = {
        brings = whole, brings_ = all_parts,
        makes = function(v, _, n) return v.each(function() return 0 end, n) end,
        makes_ = function(v, _, n) return v.each(function(m) return m * n end, n) end,
    },
    reduce_scatter = {
        sums = true, brings = all_parts, brings_ = all_parts,
        makes = function(v, g, n) return v.sum(g.me * n, n) end,
        makes_ = function(v, g, n)
            local behind = (g.me + 1) * n
            return concat { v.of(g.me, 0, g.me * n), v.sum(g.me * n, n), v.of(g.me, behind, g.n * n - behind) }
        end,
    },
    all_to_all = { brings = all_parts, brings_ = all_parts, makes = swapped },
    collective_permute = { whole = true, brings = whole, brings_ = whole, makes = from_left, options = shifts },
    broadcast = { whole = true, brings = whole, brings_ = whole, makes = from_root, options = roots },
}

local WAYS = {
    { name = "blocking", in_place = false }, { name = "in place", in_place = true },
    { name = "async", in_place = false, async = true }, { name = "async in place", in_place = true, async = true },
}

--- One call, its number k choosing shift or root, with n elements a part.
local function run_case(name, g, dtype, n, way, k)
    local step <close> = mx.step()
    local operation = OPERATIONS[name]
    local v = new_values(g, dtype, operation.sums and MOST // g.n or MOST)
    local options = operation.options and operation.options(g, k) or {}
    local makes = way.in_place and operation.makes_ or operation.makes
    local brings = way.in_place and operation.brings_ or operation.brings
    local what = ("%s, %s, %s, %d a part, over %d"):format(name, way.name, dtype, n, g.n)
    options.axis, options.async = g.axis, way.async
    local x = brings(v, g, n, options)
    local want = makes(v, g, n, options)
    if not way.in_place then
        local before = x:clone()
        local y = mx[name](x, options)
        assert_same(y, want, what)
        assert_same(x, before, what .. ", what it read")
    else
        lu.assertIs(mx[name .. "_"](x, options), x, what)
        assert_same(x, want, what)
    end
end

-- ---- three dimensions ----

-- A tensor from a function of its coordinates, from 0.
local function build(shape, dtype, value)
    local flat = {}
    for a = 0, shape[1] - 1 do
        for b = 0, shape[2] - 1 do
            for c = 0, shape[3] - 1 do
                flat[#flat + 1] = value({ a, b, c })
            end
        end
    end
    return mx.tensor(flat, dtype):reshape(shape)
end

local function resized(shape, dim, size)
    local out = { table.unpack(shape) }
    out[dim] = size
    return out
end

local SHAPE = ranks > 4 and { ranks, ranks, ranks } or { 2 * ranks, ranks, 3 * ranks }

--- Element `at` of what rank r brings.
local function brought(shape, r, at, limit, dtype)
    return element(r, (at[1] * shape[2] + at[2]) * shape[3] + at[3], limit, dtype)
end

local function sum_of(at, of)
    local total = 0
    for r = 0, ranks - 1 do
        total = total + of(r, at)
    end
    return total
end

-- ---- meshes ----

local AXES = { "data", "fsdp", "tensor" }

-- { data ici, data dcn, fsdp ici, fsdp dcn, tensor ici, tensor dcn } for each number of ranks.
local MESHES = {
    [1] = { { 1, 1, 1, 1, 1, 1 } },
    [2] = { { 2, 1, 1, 1, 1, 1 }, { 1, 1, 1, 2, 1, 1 }, { 1, 1, 1, 1, 2, 1 } },
    [3] = { { 1, 3, 1, 1, 1, 1 }, { 1, 1, 3, 1, 1, 1 } },
    [4] = {
        { 2, 1, 1, 1, 2, 1 }, { 1, 2, 1, 1, 2, 1 }, { 1, 1, 2, 1, 1, 2 }, { 1, 1, 2, 2, 1, 1 }, { 1, 1, 1, 2, 1, 2 },
        { 1, 1, 4, 1, 1, 1 },
    },
    [6] = {
        { 2, 1, 1, 1, 3, 1 }, { 1, 2, 3, 1, 1, 1 }, { 3, 1, 1, 2, 1, 1 }, { 1, 1, 2, 3, 1, 1 },
    },
    [8] = { { 2, 1, 2, 1, 2, 1 }, { 1, 2, 1, 1, 2, 2 } },
}

local AXIS_SETS = {
    "data", "fsdp", "tensor", { "data", "fsdp" }, { "data", "tensor" }, { "tensor", "fsdp" },
    { "fsdp", "tensor", "data" },
}

local function define(sizes)
    local axes = {}
    for a, name in ipairs(AXES) do
        axes[a] = { name = name, ici = sizes[2 * a - 1], dcn = sizes[2 * a] }
    end
    mx.mesh_define(axes)
end

-- Ranks are handed out slice by slice, the last axis fastest: rank -> { data =, fsdp =, tensor = }.
local function lay_out(s)
    local places, r = {}, 0
    for outer_data = 0, s[2] - 1 do
        for outer_fsdp = 0, s[4] - 1 do
            for outer_tensor = 0, s[6] - 1 do
                for data = 0, s[1] - 1 do
                    for fsdp = 0, s[3] - 1 do
                        for tensor = 0, s[5] - 1 do
                            places[r] = {
                                data = outer_data * s[1] + data, fsdp = outer_fsdp * s[3] + fsdp,
                                tensor = outer_tensor * s[5] + tensor,
                            }
                            r = r + 1
                        end
                    end
                end
            end
        end
    end
    return places
end

--- The ranks that are where we are on all axes but these.
local function group_along(places, axis)
    local free = {}
    for _, name in ipairs(type(axis) == "table" and axis or { axis }) do
        free[name] = true
    end
    local members = {}
    for r = 0, ranks - 1 do
        local same = true
        for _, name in ipairs(AXES) do
            same = same and (free[name] or places[r][name] == places[rank][name])
        end
        members[#members + 1] = same and r or nil
    end
    return new_group(members, axis)
end

local function sorted_names()
    local names = {}
    for name in pairs(OPERATIONS) do
        names[#names + 1] = name
    end
    table.sort(names)
    return names
end

return {
    DTYPES = DTYPES, MOST = MOST, MANY = MANY, ALL = ALL, WAYS = WAYS, SHAPE = SHAPE, AXIS_SETS = AXIS_SETS,
    MESHES = MESHES, OPERATIONS = OPERATIONS, element = element, series = series, assert_same = assert_same,
    concat = concat, new_values = new_values, run_case = run_case, build = build, resized = resized,
    brought = brought, sum_of = sum_of, define = define, lay_out = lay_out, group_along = group_along,
    sorted_names = sorted_names,
}
