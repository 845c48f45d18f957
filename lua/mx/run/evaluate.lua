--- Loss of a model: on the evaluation data of a training run (evaluate.data), or on a text or a file of tokens
--- (evaluate.loss).
--
-- evaluate.loss reads tokens in windows of `context` tokens that start `stride` tokens apart. Each token is scored
-- once, in the first window that contains it. With stride = context, the first tokens of a window have no context. With
-- a smaller stride every token has at least context - stride tokens of context, but the work grows by context / stride.

local mx = require "mx"
local util = require "mx.util"

local evaluate = {}

--- The windows over n tokens: the position of the first input (from 0), the number of inputs, and the number of scored
--- targets, which are the last ones of the window. Target i is the token after input i. Every token except the first is
--- scored once.
---@param n integer
---@param context integer number of inputs of a window
---@param stride integer 1 to context
---@return {start: integer, length: integer, scored: integer}[]
function evaluate.windows(n, context, stride)
    local list, done = {}, 0 -- the last position that has been scored
    local length = math.min(context, n - 1)
    while done < n - 1 do
        local last = math.min(done == 0 and length or done + stride, n - 1)
        list[#list + 1] = { start = last - length, length = length, scored = last - done }
        done = last
    end
    return list
end

-- One window's inputs, targets and mask: (1, S) each.
local function row_of(tokens, window)
    local S = window.length
    local all = mx.narrow(tokens, { dim = 1, start = window.start + 1, length = S + 1 })
    local mask = mx.arange({ n = S }):ge(S - window.scored)
    return mx.narrow(all, { dim = 1, start = 1, length = S }), mx.narrow(all, { dim = 1, start = 2, length = S }),
        mask:to("u8")
end

-- Windows first to last as a batch of B. Missing windows are padding that does not count.
local function batch_of(tokens, windows, first, B)
    local S = windows[1].length
    local batch = {
        tokens = mx.zeros({ B, S }, "i32"), targets = mx.zeros({ B, S }, "i32"), mask = mx.zeros({ B, S }, "u8"),
    }
    for b = 1, B do
        local window = windows[first + b - 1]
        if window then
            local inputs, targets, mask = row_of(tokens, window)
            mx.write_slice(batch.tokens, inputs:view(1, S), { dim = 1, start = b })
            mx.write_slice(batch.targets, targets:view(1, S), { dim = 1, start = b })
            mx.write_slice(batch.mask, mask:view(1, S), { dim = 1, start = b })
        end
    end
    return batch
end

-- The sum of a batch's losses and the number of scored tokens, on this rank.
local function score(model, batch)
    batch = model.parallel:batch_part(batch)
    local count = mx.sum(batch.mask:to("f32")):item()
    local loss = model:loss(batch, true):item()
    return count > 0 and loss * count or 0.0, count
end

-- The mean loss over the targets of all ranks' batches, without dropout and z_loss. Collective.
local function mean_loss(model, batches, batch_at, progress)
    local sum, count = 0.0, 0.0
    mx.no_grad(function()
        for i = 0, batches - 1 do
            mx.scope(function()
                local loss, n = score(model, batch_at(i))
                sum, count = sum + loss, count + n
            end)
            progress(i + 1, count > 0 and ("loss %.4f"):format(sum / count) or nil)
        end
    end)
    if mx.ranks() > 1 then
        local totals = mx.scope(function()
            return mx.all_reduce_(mx.tensor({ sum, count })):totable()
        end)
        sum, count = totals[1], totals[2]
    end
    return sum / count
end

--- The mean loss of a model over tokens; each token except the first is scored once. Dropout and z_loss are left out.
--- Ranks divide the windows among them. Collective.
---@param model mx.Decoder
---@param tokens any (n) i32
---@param o {context: integer, stride: integer, batch: integer} batch: windows of each rank in one pass
---@return number loss in nats per token
function evaluate.loss(model, tokens, o)
    util.arguments(o, { "context", "stride", "batch" }, {}, "mx.evaluate.loss")
    local windows = evaluate.windows(tokens:size(1), o.context, o.stride)
    local part, parts = model.parallel:batch_place()
    local batch = math.min(o.batch, (#windows + parts - 1) // parts) -- avoids rows without a window
    local batches = (#windows + batch * parts - 1) // (batch * parts)
    return mean_loss(model, batches, function(i)
        return batch_of(tokens, windows, (i * parts + part) * batch + 1, batch)
    end, mx.metrics.progress("batches of windows", batches))
end

-- Number of targets of a batch that count, of this rank's sequences.
local function targets_of(batch)
    return mx.sum(batch.mask:to("f32")):item()
end

--- The mean loss of a model over the targets of evaluation data. Nothing that training depends on changes. If a rank
--- cannot read its data, all ranks raise its message, and data.failed is true. Collective.
---@param model mx.Decoder
---@param data mx.Data of mx.data.open_evaluation
---@param most integer evaluate at most so many batches; -1: all
---@return number loss in nats per token
---@return number targets
---@return number? of multi-token prediction, with mtp_eval_target_module: per cent of accepted predictions
function evaluate.data(model, data, most)
    local batches, targets = data:batches_of_pass(), 0
    batches = most > 0 and math.min(most, batches) or batches
    data.failed = true -- reset at the end of this function
    local loss = mean_loss(model, batches, function(i)
        local batch = mx.checkpoint.together(data.batch_of_pass, data, i)
        targets = targets + targets_of(batch)
        return batch
    end, mx.metrics.progress("evaluation batches", batches))
    data.failed = false
    -- Ranks that work on the same sequences count them too.
    local ahead = model.mtp and model.shape.mtp.target > 0 and model.mtp:acceptance() or nil
    return loss, mx.train.average(targets) * data.parts, ahead
end

-- Reads a token file. The tokenizer of a token store must match.
local function read_tokens(path, format, tokenizer)
    local reader <close> = util.attempt(mx.io.tokens_open, path, format)
    local store = reader:store()
    if store and tokenizer and tokenizer:matches(store.fingerprint) == false then
        mx.tokenizer.check_same({ what = tokenizer.name .. ", the model's", fingerprint = tokenizer:fingerprint() },
            { what = ("%s, made by %s"):format(path, store.tokenizer), fingerprint = store.fingerprint },
            "Prepare the texts with the model's tokenizer")
    end
    return util.attempt(reader.read, reader, 0, reader:count())
end

--- The tokens of a file: those of a token file, or a text encoded by a tokenizer. Not collective.
---@param path string
---@param o {format: string, tokenizer: mx.Tokenizer?, bos: boolean, vocab: integer, max_tokens: integer} format: auto,
---       text, bin or hdf5; bos: add the tokenizer's BOS to a text; max_tokens: from the start of the file, 0: all
---@return any (n) i32
---@return integer? number of scored bytes of the text, if known
function evaluate.tokens(path, o)
    local is_text = o.format == "text" or o.format == "auto" and not path:find("%.bin$") and not path:find("%.h5$")
        and not path:find("%.hdf5$")
    local tokens
    if is_text and o.tokenizer then
        local text = util.attempt(mx.io.read_file, path)
        local name, advice = mx.io.format_of(text)
        if name then
            util.refuse("'%s' is %s, and text is expected: %s", path, name, advice)
        end
        tokens = o.tokenizer:encode(text, { bos = o.bos })
    elseif is_text then
        util.refuse("%s is a text, and the model has no tokenizer (its vocabulary has %d entries): give "
            .. "tokenizer=FOLDER or a file of tokens", path, o.vocab)
    else
        tokens = read_tokens(path, o.format, o.tokenizer)
    end
    if o.max_tokens > 0 and tokens:size(1) > o.max_tokens then
        tokens = mx.narrow(tokens, { dim = 1, start = 1, length = o.max_tokens })
    end
    local n = tokens:size(1)
    if n < 2 then
        util.refuse("%s has %d token%s: at least two are needed, one to go by and one to score", path, n,
            n == 1 and "" or "s")
    elseif mx.max(tokens):item() >= o.vocab then
        util.refuse("%s has the token id %d, outside the model's vocabulary of %d", path, mx.max(tokens):item(),
            o.vocab)
    end
    local scored = mx.narrow(tokens, { dim = 1, start = 2, length = n - 1 })
    return tokens, o.tokenizer and #o.tokenizer:decode(scored) or nil
end

return evaluate
