--- lua/reference.md and lua/from_pytorch.md, made of what mx.help says.

local mx = require "mx"
local help = require "mx.help"

local pages = {}

local REFERENCE = [[
# Reference

Every function of `mx` and every method of tensors, with an example. `print(mx.help "NAME")` prints the same.
[Tensors in Lua](tensors.md) explains what all of them share; [From PyTorch](from_pytorch.md) goes by the names of
PyTorch. Operations are methods, too: `mx.sum(x)` is `x:sum()`. In the examples, `--> text` is the value of the line.

`build/mxlua scripts/reference.lua` writes this page. The texts are in `lua/mx/help`, those of operations in
`engine/ops`.
]]

local FROM_PYTORCH = [[
# From PyTorch

What names of PyTorch and of other libraries are called here. `print(mx.help "unsqueeze")` says the same at the prompt,
with an example. [Reference](reference.md) explains all functions.

- **Options are named**: `x:sum { dim = 2 }`, `mx.concat(a, b, { dim = 1 })`.
- **Dimensions and positions count from 1, ids from 0.** `dim = -1` is the last dimension.
- **`local step <close> = mx.step()`** opens each round of a loop. It releases the tensors of the round.
- **A model is a function and a table of parameters**, `params[name]`. Weights of `mx.nn.linear` are (inputs, outputs).
- **Initial weights depend on the name of a layer, its sizes and the option `seed`**, not on `mx.manual_seed`: two
  layers with one name are equal. Repetitions of an experiment and members of an ensemble take a seed each:
  `local params = mx.nn.seed({}, n)`.
- **`optimizer:step()` clears the gradients**, too.
- **Comparisons are methods**: `x:gt(0)` is a u8 tensor. `and`, `or` and `not` are words of Lua: use `*`, `mx.maximum`
  and `1 - mask`.

A classifier, with the lines of PyTorch at the right:

```lua
local mx = require "mx"                                                --  import torch
local x = mx.randn(320, 4)
local y = x[{ {}, { 1, 3 } }]:argmax { dim = 2 }                       --  x[:, :3].argmax(1)

local params = {}                                                      --  class Net(nn.Module): def __init__(self):
local hidden = mx.nn.linear(params, "hidden", 4, 32, { bias = true })  --  self.hidden = nn.Linear(4, 32)
local out = mx.nn.linear(params, "out", 32, 3, { bias = true })        --  self.out = nn.Linear(32, 3)

local function model(input, trains)                                    --  def forward(self, input):
    local h = hidden(input):relu()                                     --  h = self.hidden(input).relu()
    h = trains and mx.dropout(h, { rate = 0.1 }) or h                  --  h = F.dropout(h, 0.1, self.training)
    return out(h)                                                      --  return self.out(h)
end

local optimizer = mx.optim.adamw(params, {                             --  optim.AdamW(model.parameters(),
    learning_rate = 1e-2, weight_decay = 0.01, clip = 1,               --      lr=1e-2, weight_decay=0.01)
})
local data = mx.data.dataset({ x = x, y = y }, { batch = 32 })         --  DataLoader(TensorDataset(x, y), 32, True)
for epoch = 1, 20 do
    for batch in data:epoch() do                                       --  for xb, yb in loader:
        local step <close> = mx.step()                                 --  (nothing: Python frees memory itself)
        local logits = model(batch.x, true)                            --  logits = model(xb)
        local loss = mx.softmax_cross_entropy(logits, batch.y)         --  loss = F.cross_entropy(logits, yb)
        mx.backward(loss)                                              --  loss.backward()
        optimizer:step()                                               --  clip_grad_norm_(model.parameters(), 1);
    end                                                                --  optimizer.step(); optimizer.zero_grad()
end
local guess = mx.no_grad(model, x):argmax { dim = 2 }                  --  with torch.no_grad(): model(x).argmax(1)
local accuracy = guess:eq(y):to("f32"):mean():item()                   --  (guess == y).float().mean().item()
mx.nn.save(params, "model.h5")                                         --  torch.save(model.state_dict(), "model.pt")
```

`build/mxlua scripts/reference.lua` writes this page; the names are in `lua/mx/help`.
]]

local function code(text)
    return "`" .. text:gsub("|", "\\|") .. "`"
end

--- The text of lua/reference.md.
---@return string
function pages.reference()
    local lines = { REFERENCE }
    for _, section in ipairs(help.sections()) do
        lines[#lines + 1] = not section.elsewhere and "## " .. section.title .. "\n" or nil
        for _, entry in ipairs(not section.elsewhere and section.entries or {}) do
            local title = entry.is_topic and not entry.call:find("^t[.%[]") and entry.call or code(entry.call)
            lines[#lines + 1] = ("**%s**: %s\n"):format(title, entry.text)
            for _, option in ipairs(entry.options) do
                lines[#lines + 1] = ("- `%s` (%s): %s"):format(option.name, option.standard, option.doc)
            end
            if #entry.options > 0 then
                lines[#lines + 1] = ""
            end
            if entry.code then
                lines[#lines + 1] = "```lua\n" .. entry.code .. "\n```\n"
            end
        end
    end
    return table.concat(lines, "\n")
end

--- The text of lua/from_pytorch.md.
---@return string
function pages.from_pytorch()
    local lines = { FROM_PYTORCH }
    for _, section in ipairs(help.sections()) do
        local rows = {}
        for _, entry in ipairs(section.entries) do
            local names = {}
            for i, name in ipairs(entry.torch) do
                names[i] = code(name)
            end
            if #names > 0 then
                rows[#rows + 1] = ("| %s | %s |"):format(table.concat(names, ", "),
                    entry.is_topic and not entry.call:find("^t[.%[]") and entry.text or code(entry.call))
            end
        end
        if #rows > 0 then
            lines[#lines + 1] = ("## %s\n\n| elsewhere | here |\n|---|---|\n%s\n"):format(section.title,
                table.concat(rows, "\n"))
        end
    end
    return table.concat(lines, "\n")
end

--- Writes both pages.
function pages.write()
    mx.io.write_file_atomic(mx.root .. "lua/reference.md", pages.reference())
    mx.io.write_file_atomic(mx.root .. "lua/from_pytorch.md", pages.from_pytorch())
end

return pages
