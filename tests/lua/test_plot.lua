--- Charts of mx.plot, sparklines and progress bars. Expected positions follow from the size of a chart: the area
-- between the axes of svg.plot is 302 x 182 units, from (48, 10) on.

local mx = require "mx"
local lu = require "luaunit"
local png = require "mx.report.png"

local folder

local function refused(parts, fn, ...)
    local good, message = pcall(fn, ...)
    lu.assertFalse(good, table.concat(parts, " "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

local function setup()
    folder = os.tmpname()
    os.remove(folder)
    folder = folder .. "/"
    mx.io.mkdir_p(folder)
end

local function clear()
    mx.io.remove_folder(folder)
end

-- The file that mx.plot writes for these options; its elements must be closed in order.
local function drawn(options, ending)
    options.file = folder .. "a." .. (ending or "svg")
    mx.plot(options)
    local text, open = mx.io.read_file(options.file), {}
    for closing, name, _, empty in text:gsub("<!DOCTYPE html>", ""):gmatch("<(/?)(%a[%w]*)([^<>]-)(/?)>") do
        if closing == "/" then
            lu.assertEquals(name, table.remove(open))
        elseif empty == "" then
            open[#open + 1] = name
        end
    end
    lu.assertEquals(open, {})
    return text
end

TestPlot = { setUp = setup, tearDown = clear }

function TestPlot.test_lines_are_where_their_numbers_are()
    local text = drawn { y = { 0, 10, 5 }, title = "a < b", x_label = "step", y_label = "loss" }
    lu.assertStrContains(text, 'd="M48.0 192.0L199.0 10.0L350.0 101.0"')
    for _, part in ipairs { "a &lt; b", ">step<", ">loss<", 'xmlns="http://www.w3.org/2000/svg"' } do
        lu.assertStrContains(text, part)
    end
    local logarithmic = drawn { x = mx.tensor { 1, 10, 100 }, y = { 1, 10, 100 }, x_log = true, y_log = true }
    lu.assertStrContains(logarithmic, 'd="M48.0 192.0L199.0 101.0L350.0 10.0"')
end

function TestPlot.test_several_series_have_a_legend()
    local second = { name = "second", y = { 2, 1 }, dashed = true }
    local text = drawn { series = { { name = "first", y = { 1, 2 } }, second } }
    lu.assertStrContains(text, ">first<")
    lu.assertStrContains(text, 'class="line dashed"')
    local marks = drawn { kind = "scatter", series = { { name = "a", x = { 1, 2, 3 }, y = { 1, 2, 3 } } } }
    lu.assertEquals(select(2, marks:gsub("<circle", "")), 4) -- and one in the legend
end

function TestPlot.test_what_cannot_be_shown_is_counted()
    local text = drawn { y = { 1, 0 / 0, 3, 1 / 0 }, caption = "By hand." }
    lu.assertStrContains(text, "By hand. series 1: 2 of 4 values cannot be")
    lu.assertStrContains(drawn { y = { -1, 1, 10 }, y_log = true }, "1 of 3 values cannot be")
    local many = {}
    for i = 1, 6000 do
        many[i] = i == 4321 and 1e6 or i % 7
    end
    text = drawn { y = many, high = 1e6 }
    lu.assertTrue(#text < 60000)
    lu.assertStrContains(text, " 10.0L") -- the peak is kept
    lu.assertStrContains(drawn { kind = "scatter", y = many }, "every 2th point is shown")
end

-- Differences of such numbers are infinite.
function TestPlot.test_the_largest_numbers()
    local values = { 1e308, 1, -1e308, 2 }
    for _, options in ipairs { { y = values }, { kind = "histogram", values = values } } do
        local text = drawn(options)
        lu.assertNil(text:find "[\"=, ]%-?nan") -- the mark of a number that is none
        lu.assertNil(text:find "[\"=, ]%-?inf")
        lu.assertStrContains(text, "2 of 4 values")
    end
    lu.assertStrContains(drawn { kind = "images", values = mx.full({ 1, 2, 2 }, 1 / 0) }, "No value is finite")
    lu.assertStrContains(drawn { kind = "heatmap", values = { { 0 / 0 } } }, "No value is finite")
end

function TestPlot.test_histograms_count()
    local text = drawn { kind = "histogram", values = { 0, 1, 1, 2, 3, 4, 0 / 0 }, bins = 4 }
    for _, part in ipairs { "1 from 0 to 1", "2 from 1 to 2", "1 from 2 to 3", "2 from 3 to 4", "1 of 7 values" } do
        lu.assertStrContains(text, part)
    end
    text = drawn { kind = "histogram", bins = 2, low = 0, high = 2, series = { { name = "a", y = { 0, 5, 1 } } } }
    lu.assertStrContains(text, "1 values are outside of low and high")
    lu.assertStrContains(drawn { kind = "histogram", values = mx.ones(5), bins = 1 }, "5 from 1 to 2")
    local grid = mx.ones(2, 3):requires_grad() -- of any shape
    lu.assertStrContains(drawn { kind = "histogram", values = grid, bins = 1 }, "6 from 1 to 2")
end

-- The pixels of a data URI, and its size: undoes png.uri, with a check of every checksum.
local function decode(uri)
    local letters, bits, count, bytes = {}, 0, 0, {}
    for i, letter in utf8.codes("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") do
        letters[utf8.char(letter)] = i - 1
    end
    for letter in uri:match("^data:image/png;base64,([^=]*)=*$"):gmatch(".") do
        bits, count = bits << 6 | letters[letter], count + 6
        if count >= 8 then
            count = count - 8
            bytes[#bytes + 1] = string.char(bits >> count & 255)
        end
    end
    local text, at, chunks = table.concat(bytes), 9, {}
    lu.assertEquals(text:sub(1, 8), "\x89PNG\r\n\x1a\n")
    while at <= #text do
        local length, kind = (">I4c4"):unpack(text, at)
        local content = text:sub(at + 8, at + 7 + length)
        lu.assertEquals((">I4"):unpack(text, at + 8 + length), mx.io.crc32(kind .. content))
        chunks[kind], at = content, at + 12 + length
    end
    local width, height = (">I4I4"):unpack(chunks.IHDR)
    return mx.io.inflater():push(chunks.IDAT:sub(3, -5)), width, height, chunks.IDAT
end

function TestPlot.test_pictures()
    local rows = { "\1\2\3\4\5\6\7\8", "\9\10\11\12\13\14\15\16" }
    local pixels, width, height, data = decode(png.uri(2, 2, rows))
    lu.assertEquals({ pixels, width, height }, { "\0" .. rows[1] .. "\0" .. rows[2], 2, 2 })
    lu.assertEquals(data:sub(1, 2), "\x78\x9c")
    -- Adler-32 of 0 1 2 ... 8 0 9 10 ... 16: the sum of bytes, and of the sums so far.
    local a, b = 1, 0
    for _, byte in ipairs { pixels:byte(1, -1) } do
        a, b = a + byte, b + a + byte
    end
    lu.assertEquals((">I4"):unpack(data, #data - 3), b << 16 | a)
    lu.assertEquals(png.grey(0.5), "\x80\x80\x80\xff")
    lu.assertEquals(png.heat(0 / 0), "\0\0\0\0")
    lu.assertEquals({ png.heat(0), png.heat(1) }, { "\68\1\84\255", "\253\231\37\255" })
end

function TestPlot.test_heat_maps_and_images()
    local text = drawn { kind = "heatmap", values = mx.tensor { { 0, 1 }, { 2, 4 }, { 0 / 0, 0 } } }
    local pixels, width, height = decode(text:match('href="([^"]*)"'))
    lu.assertEquals({ width, height }, { 2, 3 })
    lu.assertEquals(pixels, "\0" .. png.heat(0) .. png.heat(0.25) .. "\0" .. png.heat(0.5) .. png.heat(1) .. "\0"
        .. png.heat(0 / 0) .. png.heat(0))
    lu.assertStrContains(text, "From 0 (dark blue) to 4 (yellow)")
    text = drawn { kind = "images", values = mx.arange(12):view(3, 2, 2), columns = 2 }
    pixels, width, height = decode(text:match('href="([^"]*)"'))
    lu.assertEquals({ width, height }, { 5, 5 })
    lu.assertEquals(pixels:sub(2, 9), png.grey(0) .. png.grey(1 / 11))
    text = drawn { kind = "images", values = mx.tensor { { { { 0, 0.5, 1 } } } }, low = 0, high = 1 }
    lu.assertEquals(decode(text:match('href="([^"]*)"')), "\0\0\x80\xff\xff")
end

function TestPlot.test_a_page_of_several_charts()
    local html = drawn({ title = "All", charts = { { y = { 1, 2 }, title = "one" }, { kind = "histogram",
        values = { 1 }, title = "two" } } }, "html")
    for _, part in ipairs { "<!DOCTYPE html>", "<h1>All</h1>", "<b>one</b>", "<b>two</b>" } do
        lu.assertStrContains(html, part)
    end
    lu.assertNil(html:find("http", 1, true))
end

function TestPlot.test_messages()
    refused({ "low = 5 must be below high = 1" }, mx.plot, { file = folder .. "a.svg", y = { 1 }, low = 5, high = 1 })
    refused({ "values is empty" }, mx.plot, { file = folder .. "a.svg", kind = "histogram", values = {} })
    refused({ "'line' is a kind: write kind = \"line\"" }, mx.plot, { file = folder .. "x.svg", line = { 1, 2 } })
    refused({ "'file' is missing" }, mx.plot, { y = { 1 } })
    refused({ "must end in .svg or .html" }, mx.plot, { file = "a.png", y = { 1 } })
    refused({ "'tilte'", "'title'" }, mx.plot, { file = "a.svg", y = { 1 }, tilte = "x" })
    refused({ "kind is 'histogramm'", "'histogram'" }, mx.plot, { file = "a.svg", kind = "histogramm" })
    refused({ "series 1: 'y' is missing" }, mx.plot, { file = "a.svg" })
    refused({ "series 1: y has 2 dimensions; expected 1" }, mx.plot, { file = "a.svg", y = mx.ones(2, 2) })
    refused({ "entry 2 of series 1: y is string" }, mx.plot, { file = "a.svg", y = { 1, "b" } })
    refused({ "1 values of x and 2 of y" }, mx.plot, { file = "a.svg", x = { 1 }, y = { 1, 2 } })
    refused({ "'nmae'", "'name'" }, mx.plot, { file = "a.svg", series = { { nmae = "a", y = { 1 } } } })
    refused({ "several charts need a page" }, mx.plot, { file = "a.svg", charts = {} })
    refused({ "images are a tensor (N, H, W)", "(2, 2)" }, mx.plot,
        { file = "a.svg", kind = "images", values = mx.ones(2, 2) })
    refused({ "row 2 differs in length" }, mx.plot, { file = "a.svg", kind = "heatmap", values = { { 1, 2 }, { 1 } } })
    refused({ "bins = 0; expected 1 to 1000" }, mx.plot,
        { file = "a.svg", kind = "histogram", values = { 1 }, bins = 0 })
    refused({ "no finite value" }, mx.plot, { file = "a.svg", kind = "histogram", values = { 0 / 0 } })
end

TestTerminal = {}

function TestTerminal.test_sparklines()
    lu.assertEquals(mx.sparkline { 0, 1, 2, 3, 4, 5, 6, 7 }, "▁▂▃▄▅▆▇█")
    lu.assertEquals(mx.sparkline({ 0, 0, 7, 7 }, 2), "▁█")
    lu.assertEquals(mx.sparkline { 1, 0 / 0, 2 }, "▁×█")
    lu.assertEquals(mx.sparkline(mx.tensor { 3, 3 }), "▁▁")
    lu.assertEquals(mx.sparkline {}, "")
end

function TestTerminal.test_progress_counts()
    local seen = {}
    for i, say in mx.progress(3, "loop") do
        seen[i] = i
        say "so far"
    end
    lu.assertEquals(seen, { 1, 2, 3 })
    for _ in mx.progress(0) do
        lu.fail("no step")
    end
    for i in mx.progress(10) do
        if i == 2 then
            break
        end
    end
    refused({ "mx.progress(n): n is 2.5" }, mx.progress, 2.5)
end

function TestTerminal.test_log_plot_shows_the_loss_so_far()
    lu.assertFalse(mx.config.load({ "model_name=tiny" }).log_plot)
    local lines = {}
    mx.metrics.log_to { line = function(_, text) lines[#lines + 1] = text end, close = function() end }
    local report = mx.metrics.new { steps = 3, flops = 1, tokens = 1, params = 1, formula = "maxtext-2025-07",
        period = 1, plot = true }
    for step, loss in ipairs { 8, 4, 1 } do
        report:step(step, { loss = loss, learning_rate = 0 })
    end
    mx.metrics.log_to(nil)
    local text = table.concat(lines, "\n")
    for _, part in ipairs { "remaining  loss so far", "  ▁\n", "  █▁\n", "  █▄▁" } do -- (4 - 1) / (8 - 1) of 7 steps: 3
        lu.assertStrContains(text .. "\n", part)
    end
end
