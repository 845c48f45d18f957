--- Every code point through the patterns and normal forms of the usual tokenizers, as the package `tokenizers` has it.
-- tests/golden/make_unicode.py says what unicode.json holds.

local mx = require "mx"
local lu = require "luaunit"

local GOLDEN = mx.io.json_decode(mx.io.read_file(mx.root .. "tests/golden/unicode.json"))

-- Blocks of CJK, Tangut and Hangul, where one letter is like the next: left out to save time.
local UNIFORM = { { 0x4000, 0x8fff }, { 0xb000, 0xcfff }, { 0x17000, 0x17fff }, { 0x21000, 0x29fff } }

local function is_uniform(code)
    for _, area in ipairs(UNIFORM) do
        if code >= area[1] and code <= area[2] then
            return true
        end
    end
    return false
end

TestUnicode = {}

local function tokenizer_of(case)
    local vocab = {}
    for i, letter in ipairs(GOLDEN.alphabet) do
        vocab[letter] = i - 1
    end
    return mx.tokenizer.from_json(mx.io.json_encode {
        normalizer = case.normalizer, pre_tokenizer = case.pre_tokenizer,
        model = { type = "BPE", vocab = vocab, merges = mx.io.array {} },
    })
end

-- A text for each code point of a block, and their sum as make_unicode.py forms it.
local function sum_of(tok, text, first)
    local step <close> = mx.step()
    local parts = {}
    for code = first, first + GOLDEN.step - 1 do
        if code < 0xd800 or code >= 0xe000 then
            parts[#parts + 1] = text:gsub("@", (utf8.char(code):gsub("%%", "%%%%")))
        end
    end
    local ids = tok:encode(table.concat(parts)):totable()
    for i, id in ipairs(ids) do
        ids[i] = string.pack("<I2", id)
    end
    return mx.io.crc32c(table.concat(ids))
end

for _, case in ipairs(GOLDEN.cases) do
    TestUnicode["test_" .. case.name:gsub("%W", "_")] = function()
        local tok, at = tokenizer_of(case), 0
        for _, area in ipairs(GOLDEN.areas) do
            for first = area[1], area[2], GOLDEN.step do
                at = at + 1
                if not is_uniform(first) then
                    lu.assertEquals(sum_of(tok, case.text, first), case.sums[at], ("U+%04X on"):format(first))
                end
            end
        end
        lu.assertEquals(at, #case.sums)
    end
end
