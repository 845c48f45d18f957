-- What a corpus is read from: lines of JSON as Python reads them, and lists of files on the command line.

local lu = require "luaunit"
local mx = require "mx"

TestJsonLines = {}

local function from_hex(text)
    return (text:gsub("..", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

-- tests/golden/make_golden_json.py: each line and what json.loads makes of it.
function TestJsonLines.test_what_python_reads_is_read()
    local count = 0
    for entry in io.lines(mx.root .. "tests/golden/json_lines.txt") do
        local hex, kind, expected = entry:match("^(%x*) ([=!-])(%x*)$")
        local line = from_hex(hex)
        local text, wrong = mx.io.json_line_text(line, "text")
        if kind == "=" then
            lu.assertEquals(text, from_hex(expected), line)
        else
            lu.assertNil(text, line)
            lu.assertEquals(wrong ~= nil, kind == "!", line)
        end
        count = count + 1
    end
    lu.assertTrue(count > 1000)
end

function TestJsonLines.test_nesting_and_length_have_no_limit()
    for _, pair in ipairs({ { "[", "]" }, { '{"a":', "}" }, { "[{\"a\":[", "]}]" } }) do
        local deep = pair[1]:rep(100000) .. "1" .. pair[2]:rep(100000)
        lu.assertEquals(mx.io.json_line_text(('{"d":%s,"text":"x"}'):format(deep), "text"), "x")
        lu.assertNil((mx.io.json_line_text(('{"d":%s,"text":"x"'):format(deep), "text")))
    end
    local long = ("word "):rep(1 << 20)
    lu.assertEquals(mx.io.json_line_text(('{"n":%s,"text":"%s"}'):format(("9"):rep(100000), long), "text"), long)
end

function TestJsonLines.test_what_is_wrong_is_said()
    local function says(expected, line, field)
        local text, wrong = mx.io.json_line_text(line, field or "text")
        lu.assertNil(text)
        lu.assertEquals(wrong, expected)
    end
    says("no string 'text' in it (it has: id, body)", '{"id": 1, "body": "x"}')
    says("no string 'größe' in it (it has: text)", '{"text": "x"}', "größe")
    says("'text' is null; a string is expected", '{"text": null}')
    says("'text' is a number; a string is expected", '{"text": "a", "text": -1}')
    says("'text' is an array; a string is expected", '{"text": ["a"]}')
    says("an array where an object with 'text' is expected", '["a"]')
    says("a string where an object with 'text' is expected", '"a"')
    says("column 2: a key in double quotes is expected", "{'text': 'x'}")
    says("column 15: a key in double quotes is expected", '{"text": "ä", }') -- characters are counted, not bytes
    says("column 11: the line ends inside a string", '{"text": "')
    says("column 18: something follows the JSON value", '{"text": "one"}  {"text": "two"}')
    says("'text' has half of a surrogate pair, \\ud800, which is no character", '{"text": "a\\ud800"}')
    lu.assertEquals(mx.io.json_line_text('{"größe": "x"}', "größe"), "x")
end

TestLists = {}

local function split(text)
    return mx.config.options({ "input=" .. text }, { input = {} }, {}).input
end

function TestLists.test_commas_separate_and_spaces_do_not()
    lu.assertEquals(split("a b.jsonl"), { "a b.jsonl" })
    lu.assertEquals(split("a b,c [1].jsonl"), { "a b", "c [1].jsonl" })
    lu.assertEquals(split("[a b,c]"), { "a b", "c" })
    lu.assertEquals(split("[1].jsonl"), { "[1].jsonl" })
    lu.assertEquals(split("[ab]*,[cd]*"), { "[ab]*", "[cd]*" })
    lu.assertEquals(split("'a, b',\"it's\""), { "a, b", "it's" })
    lu.assertEquals(split("it's,an \"x\".txt"), { "it's", "an \"x\".txt" })
    lu.assertEquals(split("a,,b,"), { "a", "b" })
    lu.assertEquals(split(""), {})
    local other = mx.config.options({ "names= a , b c" }, { names = {} }, {})
    lu.assertEquals(other.names, { "a", "b c" })
    lu.assertEquals(mx.config.load({ "mlp_activations=[silu, linear]" }).mlp_activations, { "silu", "linear" })
end
