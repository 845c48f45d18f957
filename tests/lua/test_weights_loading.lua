-- Loading a model's weights: configs and tensors that do not fit each other.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

local GOLDEN = mx.root .. "tests/golden/weights/"
local says = checks.says

local folder = os.tmpname()
os.remove(folder)

-- A name in a folder of our own.
local function temporary(name)
    mx.io.mkdir_p(folder)
    return folder .. "/" .. name
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

TestLoading = {}

function TestLoading.tearDown()
    os.execute("rm -rf '" .. folder .. "'")
end

function TestLoading.test_train_takes_the_model_from_its_parameters()
    local config = mx.config.load { "load_parameters_path=" .. GOLDEN .. "qwen3", "max_target_length=16" }
    lu.assertEquals({ config.base_emb_dim, config.use_qk_norm, config.vocab_size }, { 32, true, 96 })
    local model = mx.models.new(config)
    mx.run.load_parameters(config.load_parameters_path, model, config)
    local expected = checks.read_all(GOLDEN .. "qwen3/model.safetensors")
    lu.assertEquals(largest(model.params["embedding.weight"] - expected["model.embed_tokens.weight"]:to("f32")), 0.0)
end

function TestLoading.test_a_mismatch_names_both_values()
    local path = GOLDEN .. "llama2"
    local function load(...)
        local config = mx.config.load { "load_parameters_path=" .. path, ... }
        mx.weights.load(mx.models.new(config), path, config)
    end
    says("'rope_max_timescale=5000' on the command line: rope_max_timescale: 5000.0, but " .. path .. " has 10000.0",
        load, "rope_max_timescale=5000")
    says("base_emb_dim: 64, but", load, "model_name=tiny")
    load("max_target_length=128")
end

-- A copy of a golden folder with another config.json.
local function changed_folder(name, change)
    local at = temporary("changed")
    os.execute(("rm -rf '%s' && cp -r '%s' '%s' && chmod -R u+w '%s'"):format(at, GOLDEN .. name, at, at))
    local values = mx.io.json_decode(mx.io.read_file(at .. "/config.json"))
    change(values, at)
    mx.io.write_file_atomic(at .. "/config.json", mx.io.json_encode(values))
    return at
end

-- With experts in all layers no MLP has the width base_mlp_dim. Shares of a softmax over the chosen experts sum to 1
-- anyway.
function TestLoading.test_differences_without_effect()
    local function check(name, word)
        return mx.weights.check(mx.weights.load_config(GOLDEN .. name, { words = { word } }), GOLDEN .. name)
    end
    check("mixtral", "base_mlp_dim=99")
    check("mixtral", "norm_topk_prob=true")
    says("base_mlp_dim: 99, but", check, "qwen3_moe", "base_mlp_dim=99") -- its first layer has no experts
    says("norm_topk_prob: true, but", check, "qwen3_moe_fused", "norm_topk_prob=true")
    says("num_experts: 4, but", check, "mixtral", "num_experts=4")
end

function TestLoading.test_tensors_that_do_not_fit()
    local function load(name, change)
        mx.weights.model(changed_folder(name, change))
    end
    says("the tensor 'model.embed_tokens.weight' is 96x32, the model's is 97x32", load, "llama2", function(values)
        values.vocab_size = 97
    end)
    says("has no tensor 'model.layers.2.input_layernorm.weight'", load, "llama2", function(values)
        values.num_hidden_layers = 3
    end)
    says("has a tensor 'model.layers.1.input_layernorm.weight' that the model lacks", load, "llama2", function(values)
        values.num_hidden_layers = 1
    end)
    says("has no tensor 'model.layers.0.self_attn.q_norm.weight'", load, "qwen2", function(values)
        values.model_type, values.head_dim = "qwen3", 8
    end)
    says("block_sparse_moe.gate.weight' is 5x24, the model's is 6x24", load, "mixtral", function(values)
        values.num_local_experts = 6
    end)
    says("mlp.experts.gate_up_proj' is 5x40x24, the model's is 5x36x24", load, "mixtral_fused", function(values)
        values.intermediate_size = 18
    end)
    says("has neither model.safetensors nor model.safetensors.index.json", load, "llama2", function(_, at)
        os.remove(at .. "/model.safetensors")
    end)
    says("model.safetensors.index.json names files that are not there: model-00001-of-00003.safetensors, "
        .. "model-00002-of-00003.safetensors", load, "qwen2", function(_, at)
        os.remove(at .. "/model-00001-of-00003.safetensors")
        os.remove(at .. "/model-00002-of-00003.safetensors")
    end)
    says("expected the name of a file beside it, got '../x'", load, "qwen2", function(_, at)
        mx.io.write_file_atomic(at .. "/model.safetensors.index.json", '{"weight_map":{"a":"../x"}}')
    end)
    says("has no tensor 'a', which model.safetensors.index.json says it has", load, "qwen2", function(_, at)
        mx.io.write_file_atomic(at .. "/model.safetensors.index.json",
            '{"weight_map":{"a":"model-00001-of-00003.safetensors"}}')
    end)
    says("has no config.json: it is no folder", mx.weights.model, mx.root .. "tests")
    says("there is no '/nowhere'", mx.weights.model, "/nowhere")
end

-- Factors of blocks that do not fit, and ways of DeepSeek that are not computed.
function TestLoading.test_what_deepseek_files_may_say()
    local function load(change)
        mx.weights.model(changed_folder("kimi_k2", change))
    end
    says("quant_method = gptq: only fp8 with weight_block_size is read", load, function(values)
        values.quantization_config.quant_method = "gptq"
    end)
    says("the tensor 'model.layers.0.self_attn.q_a_proj.weight_scale_inv' is 1x2; "
        .. "model.layers.0.self_attn.q_a_proj.weight has blocks of 8x16, which need 2x2", load, function(values)
        values.quantization_config.weight_block_size = { 8, 16 }
    end)
    says("no weight_block_size in the quantization_config", load, function(values)
        values.quantization_config = nil
    end)
    says("has a tensor 'model.layers.3.eh_proj.weight' that the model lacks", load, function(values)
        values.num_nextn_predict_layers = 0
    end)
    for key, wrong in pairs({ scoring_func = "softmax", topk_method = "greedy", norm_topk_prob = false,
        moe_layer_freq = 2 }) do
        says(key .. " = " .. tostring(wrong), load, function(values)
            values[key] = wrong
        end)
    end
    says("rms_norm_eps = 1e-05: in kimi_k2, the norms of latents have 1e-06", load, function(values)
        values.rms_norm_eps = 1e-5
    end)
    says("mscale_all_dim = 1 without YaRN", load, function(values)
        values.rope_parameters.rope_type = "default"
    end)
end

-- Folders in which the base model was saved alone have names without its prefix, and masks among the weights.
function TestLoading.test_names_without_prefix()
    local at = changed_folder("gpt2", function(_, path)
        local tensors, plan = checks.read_all(path .. "/model.safetensors"), {}
        tensors["transformer.h.0.attn.bias"] = mx.zeros { 1, 1, 8, 8 }
        for name, t in util.sorted_pairs(tensors) do
            plan[#plan + 1] = { name = name:gsub("^transformer%.", ""), dtype = t:dtype(), shape = t:size() }
        end
        local writer <close> = mx.io.safetensors_writer(path .. "/model.safetensors", plan)
        for name, t in pairs(tensors) do
            writer:put(name:gsub("^transformer%.", ""), t)
        end
        writer:commit()
    end)
    local a, b = mx.weights.model(at), mx.weights.model(GOLDEN .. "gpt2")
    for name, t in pairs(a.params) do
        lu.assertEquals(largest(t:detach() - b.params[name]:detach()), 0.0, name)
    end
end
