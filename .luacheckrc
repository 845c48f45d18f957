std = "lua54"
max_line_length = 120
codes = true
ignore = { "211/step" } -- local step <close> = mx.step(): closed at the end of its block, never read

-- Test cases are global tables, as luaunit wants them.
files["tests/"] = {
    allow_defined_top = true,
    ignore = { "131" }, -- a global that is set and never read: the test tables
}
