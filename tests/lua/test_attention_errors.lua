--- Bad input to attention: one clear error, as in test_errors.lua.

local mx = require "mx"
local checks = require "checks"

local refused = checks.assert_raises_here

TestAttentionErrors = {}

function TestAttentionErrors.setUp()
    TestAttentionErrors.step = mx.step()
end

function TestAttentionErrors.tearDown()
    local step <close> = TestAttentionErrors.step
    TestAttentionErrors.step = nil
    assert(step)
end

function TestAttentionErrors.test_attention_shapes()
    local q, k = mx.zeros { 2, 5, 4, 8 }, mx.zeros { 2, 5, 3, 8 }
    refused({ "attention", "(2, 5, 4, 8)", "(2, 5, 3, 8)" }, function() return mx.attention(q, k, k) end)
    refused({ "attention", "(2, 5, 4, 8)", "(2, 5, 4, 6)" }, function()
        return mx.attention(q, mx.zeros { 2, 5, 4, 6 }, mx.zeros { 2, 5, 4, 6 })
    end)
    refused({ "attention", "(3, 5, 4, 8)" }, function()
        return mx.attention(q, mx.zeros { 3, 5, 4, 8 }, mx.zeros { 3, 5, 4, 8 })
    end)
    local other = "k and v must have the same batch, keys and heads; their head_dim may differ"
    refused({ other, "(2, 6, 4, 8)" }, function() return mx.attention(q, q, mx.zeros { 2, 6, 4, 8 }) end)
    refused({ other, "(2, 5, 2, 8)" }, function() return mx.attention(q, q, mx.zeros { 2, 5, 2, 8 }) end)
    refused({ "head_dim must not be 0" }, function() return mx.attention(q, q, mx.zeros { 2, 5, 4, 0 }) end)
    refused({ "attention_grad", "(2, 5, 4, 8)", "(2, 5, 4, 6)" }, function()
        return mx.attention_grad(q, q, mx.zeros { 2, 5, 4, 6 }, q, mx.zeros { 2, 4, 5 }, q)
    end)
    refused({ "attention", "window" }, function() return mx.attention(q, q, q, { window = -1, causal = true }) end)
    refused({ "chunk = -1" }, function() return mx.attention(q, q, q, { chunk = -1 }) end)
    refused({ "prefix = 3", "causal = true" }, function() return mx.attention(q, q, q, { prefix = 3 }) end)
    refused({ "prefix = -3" }, function() return mx.attention(q, q, q, { prefix = -3, causal = true }) end)
    refused({ "intervals", "(2, 5, 2)", "(2, 5)" }, function()
        return mx.attention(q, q, q, mx.zeros({ 2, 5 }, "i32"))
    end)
    refused({ "intervals", "i32" }, function() return mx.attention(q, q, q, mx.zeros { 2, 5, 2 }) end)
end

function TestAttentionErrors.test_attention_intervals()
    local function make(...)
        local rows = table.pack(...)
        return function()
            for i, row in ipairs(rows) do
                rows[i] = mx.tensor(row, "i32")
            end
            return mx.attention_intervals(table.unpack(rows))
        end
    end
    refused({ "segment 4 comes again at key 5 of sequence 2", "one run", "u8" },
        make { { 1, 1, 2, 2, 0 }, { 4, 4, 9, 5, 4 } })
    refused({ "segment 7 comes again at key 3" }, make({ { 1 } }, { { 7, 8, 7 } }))
    refused({ "segments_q", "(batch, queries)" }, make { 1, 1 })
    refused({ "of the same batch" }, make({ { 1, 1 } }, { { 1 }, { 1 } }))
    refused({ "segments_q", "i32" }, function() return mx.attention_intervals(mx.zeros { 1, 2 }) end)
    refused({ "rope", "(2, 5, 4, 7)" }, function() return mx.rope(mx.zeros { 2, 5, 4, 7 }) end)
    local x = mx.zeros { 2, 5, 4, 8 }
    for _, dims in ipairs { 0, 3, 10, -2 } do
        refused({ "rope", "dims = " .. dims, "head_dim = 8" }, function() return mx.rope(x, { dims = dims }) end)
    end
    refused({ "rope", "'frequencies' must be (2, 4)" }, function() return mx.rope(x, nil, mx.zeros { 4 }) end)
    refused({ "rope", "'frequencies' must be (2, 3)" }, function()
        return mx.rope(x, nil, mx.zeros { 2, 4 }, { dims = 6 })
    end)
    refused({ "rope", "frequencies", "f32" }, function() return mx.rope(x, nil, mx.zeros({ 2, 4 }, "bf16")) end)
    refused({ "rope", "theta", "no effect" }, function() return mx.rope(x, nil, mx.zeros { 2, 4 }, { theta = 5 }) end)
    refused({ "rope", "frequencies:detach()" }, function()
        return mx.rope(x, nil, mx.zeros { 2, 4 }:requires_grad())
    end)
    refused({ "rope", "factor = inf" }, function() return mx.rope(x, { factor = math.huge }) end)
    refused({ "cross_entropy", "(2, 5, 4)", "(9, 3)" }, function()
        return mx.cross_entropy(mx.zeros { 2, 5, 4 }, mx.zeros { 9, 3 }, mx.zeros({ 2, 5 }, "i32"))
    end)
    refused({ "cross_entropy", "(2, 4)" }, function()
        return mx.cross_entropy(mx.zeros { 2, 5, 3 }, mx.zeros { 9, 3 }, mx.zeros({ 2, 4 }, "i32"))
    end)
end
