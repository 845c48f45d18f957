--- Prints random command lines, one a line: mxlua tests/fuzz/attack_words.lua SEED COUNT. For attack.sh.
--
-- Keys of configs/base.yml with odd values, unknown keys, several at once, of a model so small that a good line takes
-- less than a second.

local mx = require "mx"
local seed, count = tonumber(arg[1]) or 1, tonumber(arg[2]) or 10
math.randomseed(seed)

local function pick(list)
    return list[math.random(#list)]
end

local keys = {}
for line in mx.read_file(mx.root .. "configs/base.yml"):gmatch("[^\n]+") do
    local key = line:match("^([%w_]+):")
    keys[#keys + 1] = key ~= "steps" and key or nil -- a good line with many steps has no end
end

local VALUES = {
    "0", "1", "2", "3", "7", "-1", "-0", "0.5", "1e-9", "1e9", "1e308", "1e400", "-1e300", "inf", "nan",
    ".inf", "4294967297",
    "1000000007", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "0x10", "1_000",
    "", "true", "false", "yes", "null", "~", "[]", "[1,2]", "{}", "{a: 1}", "[[[[1]]]]", "'", '"', "a: b: c",
    "*x", "&x 1",
    "tiny", "float32", "bfloat16", "full", "custom", "minimal_offloaded", "nowhere", "/nowhere/x",
    "/dev/full", "/dev/null",
    ".", "./x", "../x", "a/b/c", "a b", "gs://bucket/x", "~/x", "%s%n%d", "$(id)", "`id`", "; id", "-", "--",
    "text", "bin", "hdf5",
    "adamw", "sgd", "v5e-256", "v5p-8", "128", "64", "256", "1024", "é", ("x"):rep(300),
}

local function quote(word)
    return "'" .. word:gsub("'", "'\\''") .. "'"
end

local function random_word()
    local kind = math.random(20)
    if kind == 1 then
        local key = pick(keys)
        local at = math.random(#key)
        return key:sub(1, at - 1) .. pick { "", "x", "_" } .. key:sub(at + 1) .. "=" .. pick(VALUES)
    elseif kind == 2 then
        return pick(VALUES)
    elseif kind == 3 then
        return pick(keys) .. pick { "", "==1", " = 1", "=1=2" }
    elseif kind == 4 then
        return pick(keys) .. "=" .. math.random(-5, 300)
    end
    return pick(keys) .. "=" .. pick(VALUES)
end

local SCRIPTS = {
    "train", "train", "train", "train", "train", "train", "train", "generate", "eval", "plan", "checkpoint",
    "convert", "prepare",
    "remat",
}

for _ = 1, count do
    local script = pick(SCRIPTS)
    local words = { script }
    if script == "train" or script == "plan" then
        for _, word in ipairs { "model_name=tiny", "max_target_length=16", "steps=2", "enable_checkpointing=false" } do
            words[#words + 1] = word
        end
    elseif script == "remat" then
        for _, word in ipairs { "model_name=tiny", "max_target_length=16", "repeats=1" } do
            words[#words + 1] = word
        end
    end
    for _ = 1, pick { 1, 1, 1, 2, 3, 6 } do
        words[#words + 1] = quote(random_word())
    end
    print(table.concat(words, " "))
end
