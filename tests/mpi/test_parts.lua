-- ranks: 1 2 4
-- Whole tensors of a model on a mesh, put together and written a piece at a time.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local MESHES = {
    { "ici_fsdp_parallelism=-1" },
    { "ici_fsdp_parallelism=1", "ici_tensor_parallelism=-1" },
    { "ici_fsdp_parallelism=-1", "ici_fsdp_transpose_parallelism=2" },
    { "ici_fsdp_parallelism=-1", "ici_tensor_sequence_parallelism=2" },
    { "ici_data_parallelism=-1", "ici_fsdp_parallelism=1" },
}
-- Sizes that no axis divides.
local ODD = {
    "base_emb_dim=47", "base_mlp_dim=95", "vocab_size=283", "base_num_query_heads=10", "base_num_kv_heads=5",
    "head_dim=4",
}

TestParts = {}

local function config_of(name, ...)
    return mx.config.load({ "model_name=" .. name, "max_target_length=64", "base_num_kv_heads=4", ... })
end

-- fn(model, config) on each mesh, with pieces of so many bytes and more words for the config.
local function on_each_mesh(name, piece_bytes, fn, more)
    local whole_bytes = util.PIECE_BYTES
    for _, words in ipairs(MESHES) do
        if mx.ranks() > 1 or words == MESHES[1] then
            local all = table.move(more or {}, 1, #(more or {}), #words + 1, { table.unpack(words) })
            local config = config_of(name, table.unpack(all))
            local model = mx.models.new(mx.models.shape(config), mx.train.mesh(config), config)
            util.PIECE_BYTES = piece_bytes
            fn(model, config, table.concat(words, " "))
            util.PIECE_BYTES = whole_bytes
        end
    end
end

-- Any range of any dimension of any parameter, on every rank.
local function check_pieces(family, more)
    on_each_mesh(family, util.PIECE_BYTES, function(model, config, words)
        local alone = mx.models.new(config).params
        local parallel = model.parallel
        for name, t in util.sorted_pairs(model.params) do
            for dim, size in ipairs(parallel:part(name, t:size()).of) do
                for _, range in ipairs({ { 1, size }, { 1, 1 }, { size, 1 }, { size // 3, size // 2 }, { 2, 3 } }) do
                    mx.scope(function()
                        local cut = { dim = dim, start = range[1], length = range[2] }
                        local piece, expected = parallel:piece(name, t:detach(), cut), alone[name]:detach()
                        local wrong = piece:ne(mx.narrow(expected, cut)):to("f32"):sum():item()
                        lu.assertEquals({ wrong, piece:size()[dim] }, { 0, range[2] }, name .. " on " .. words)
                    end)
                end
            end
        end
    end, more)
end

function TestParts.test_pieces()
    check_pieces("tiny-gpt2")
    check_pieces("tiny", ODD)
end

local function shared_name()
    return mx.share_text(mx.rank() == 0 and os.tmpname() or nil)
end

local function contents(path)
    return mx.rank() == 0 and mx.io.read_file(path) or ""
end

-- Files have the same bytes, whatever the mesh and the pieces.
function TestParts.test_files()
    local folder = shared_name() .. ".d"
    local kinds = {
        h5 = function(model, config, path)
            mx.train.save(config, model, path)
            return contents(path)
        end,
        safetensors = function(model, _, path)
            mx.weights.save(model, path)
            return contents(path .. "/model.safetensors")
        end,
    }
    for _, name in ipairs({ "tiny", "tiny-gpt2", "odd" }) do
        local family, more = name == "odd" and "tiny" or name, name == "odd" and ODD or {}
        for kind, save in util.sorted_pairs(kinds) do
            local expected
            local function path_of(i)
                return ("%s/%s-%s-%s"):format(folder, name, kind, i)
            end
            local config = config_of(family, table.unpack(more))
            expected = save(mx.models.new(config), config, path_of("whole"))
            local i = 0
            on_each_mesh(family, 1000, function(model, _, words)
                i = i + 1
                lu.assertTrue(save(model, config, path_of(i)) == expected, name .. " as " .. kind .. " on " .. words)
            end, more)
        end
    end
    mx.barrier()
    if mx.rank() == 0 then
        os.execute("rm -rf '" .. folder .. "'")
        os.remove((folder:gsub("%.d$", "")))
    end
end

-- Of a table of 8 MiB no rank has more than its part, a few pieces (cut out, put together, transposed, converted) and
-- the buffers of a collective.
function TestParts.test_memory_of_saving()
    local config = mx.config.load({ "model_name=tiny", "vocab_size=32768", "max_target_length=64" })
    local model = mx.models.new(mx.models.shape(config), mx.train.mesh(config), config)
    local path, whole_bytes = shared_name(), util.PIECE_BYTES
    util.PIECE_BYTES = 1 << 18
    mx.reset_peak()
    local before = mx.memory().in_use
    mx.train.save(config, model, path)
    mx.weights.save(model, path .. ".d", { dtype = "bf16" })
    local most = mx.memory().peak - before
    lu.assertTrue(most <= 7 * util.PIECE_BYTES, ("%d bytes of pieces"):format(most))
    util.PIECE_BYTES = whole_bytes
    mx.barrier()
    if mx.rank() == 0 then
        os.execute(("rm -rf '%s' '%s.d'"):format(path, path))
    end
end
