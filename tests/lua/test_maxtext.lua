-- MaxText's words: the table of configs/maxtext.yml, what words, files and variables become, and real command lines.

local lu = require "luaunit"
local mx = require "mx"
local maxtext = require "mx.config.maxtext"

TestWords = {}
TestLines = {}

local BASE = mx.config.parse(assert(mx.read_file(mx.root .. "configs/base.yml")), "configs/base.yml")

-- The config of a command line, which is not simulated yet. The line of words without effect is in its second result.
local function load(words)
    local said, say = nil, mx.metrics.say
    mx.metrics.say = function(format, ...)
        said = format:format(...)
    end
    local done, config = pcall(mx.config.load, words, { simulate = false })
    mx.metrics.say = say
    if not done then
        error(config, 0)
    end
    return config, said
end

local function refused(words, ...)
    local done, message = pcall(load, words)
    lu.assertFalse(done, table.concat(words, " "))
    lu.assertEquals(getmetatable(message).__name, "mx.refusal", tostring(message))
    for _, part in ipairs({ ... }) do
        lu.assertStrContains(tostring(message), part)
    end
    lu.assertNotStrContains(tostring(message), "\n")
end

local function with_file(name, content, fn)
    local path = os.tmpname()
    os.remove(path)
    mx.io.mkdir_p(path)
    local file = assert(io.open(path .. "/" .. name, "w"))
    file:write(content)
    file:close()
    local done, message = pcall(fn, path .. "/" .. name)
    os.remove(path .. "/" .. name)
    os.remove(path)
    if not done then
        error(message, 0)
    end
end

-- ---- the table ----

-- A key that comes to base.yml with MaxText's name and meaning becomes "same" here.
function TestWords.test_the_table_and_base_yml_agree()
    local keys = maxtext.new(BASE).keys -- checks all targets
    local n = 0
    for key, entry in pairs(keys) do
        n = n + 1
        lu.assertEquals(entry[1] == "same", BASE[key] ~= nil, key)
    end
    lu.assertTrue(n >= 950, n)
end

function TestWords.test_a_target_that_is_not_there_is_found()
    local keys = {}
    for key, value in pairs(BASE) do
        keys[key] = value
    end
    keys.num_slices = nil
    lu.assertErrorMsgContains("there is no key 'num_slices'", maxtext.new, keys)
end

-- ---- words ----

function TestWords.test_words_without_effect_are_listed_once()
    local config, said = load({ "model_name=tiny", "scan_layers=false", "gcs_metrics=true", "attention=dot_product",
        "attention=flash", "use_iota_embed=false", "steps=3" })
    lu.assertEquals(config.steps, 3)
    lu.assertStrContains(said, "no effect here: scan_layers=false, gcs_metrics=true, attention=dot_product (")
    lu.assertNotStrContains(said, "use_iota_embed") -- MaxText's default
    lu.assertNotStrContains(said, "flash")
    lu.assertNil(select(2, load({ "model_name=tiny", "quantization=", "num_experts=1", "profiler=" })))
end

function TestWords.test_names_and_values_of_maxtext()
    local c = load({ "model_name=tiny", "compile_topology=v5e-256", "compile_topology_num_slices=2",
        "cosine_learning_rate_final_fraction=0.2", "enable_dropout=false", "profiler=xplane", "profiler_steps=3",
        "remat_policy=minimal_flash", "max_num_checkpoints_to_keep=None", "tokenizer_type=huggingface" })
    lu.assertEquals({ c.hardware, c.num_slices, c.learning_rate_final_fraction, c.dropout_rate, c.trace_file,
        c.profiler_steps, c.remat_policy, c.max_num_checkpoints_to_keep },
        { "v5e-256", 2, 0.2, 0.0, "trace.json", 3, "minimal_with_context", 0 })
    c = load({ "model_name=tiny", "remat_policy=custom", "qkv_proj=offload", "attention_out=device" })
    lu.assertEquals({ c.query_proj, c.key_proj, c.value_proj, c.context },
        { "offload", "offload", "offload", "device" })
    lu.assertEquals(load({ "model_name=tiny", "num_slices=-1" }).num_slices, 1)
    -- Google's names of v5p count the two cores of a chip, those of v7x the two dies, which are ranks here, too.
    lu.assertEquals(load({ "model_name=tiny", "compile_topology=v5p-256" }).hardware, "v5p-128")
    lu.assertEquals(load({ "model_name=tiny", "compile_topology=tpu7x-128" }).hardware, "v7x-128")
    local _, said = load({ "model_name=tiny", "hardware=gpu" })
    lu.assertStrContains(said, "hardware=gpu (hardware=v5e-256 or compile_topology=v5e-256 simulates a pod)")
end

function TestWords.test_what_is_not_there_is_refused_with_what_is()
    refused({ "model_name=tiny", "quantization=int8" }, "'quantization=int8' on the command line: quantization: int8")
    refused({ "model_name=tiny", "num_experts=8" }, "experts are not there yet")
    refused({ "model_name=tiny", "dataset_type=hf", "hf_path=c4" }, "dataset_type: ", "scripts/prepare.lua")
    refused({ "model_name=tiny", "profiler=nsys" }, "trace_file=FILE")
    refused({ "model_name=tiny", "attention=paged" }, "attention: expected one of autoselected, cudnn_flash_jax, ")
    refused({ "model_name=tiny", "base_output_directory=gs://bucket" }, "base_output_directory: 'gs://bucket'",
        "mount that store, or give a folder, such as checkpoints")
    refused({ "scan_layer=true" }, "unknown key 'scan_layer'")
end

function TestWords.test_words_that_contradict_each_other()
    refused({ "enable_dropout=false", "dropout_rate=0.5" }, "'enable_dropout=false' on the command line: sets "
        .. "dropout_rate to 0, and 'dropout_rate=0.5' on the command line sets it to 0.5")
    refused({ "profiler=xplane", "trace_file=a" }, "trace_file")
    lu.assertEquals(load({ "model_name=tiny", "enable_dropout=true", "dropout_rate=0.5" }).dropout_rate, 0.5)
end

function TestWords.test_a_path_beside_made_data()
    local c, said = load({ "model_name=tiny", "dataset_path=gs://bucket", "dataset_type=synthetic" })
    lu.assertEquals(c.dataset_path, "")
    lu.assertStrContains(said, "dataset_path=gs://bucket")
    refused({ "model_name=tiny", "dataset_path=a.h5" }, "no effect with dataset_type = synthetic") -- forgotten
end

-- ---- files ----

function TestWords.test_a_base_yml_that_is_not_here()
    local c, said = load({ "MaxText/configs/base.yml", "model_name=tiny" })
    lu.assertEquals(c.base_emb_dim, 64)
    lu.assertStrContains(said, "MaxText/configs/base.yml (not there; configs/base.yml is read)")
    refused({ "MaxText/configs/other.yml", "model_name=tiny" }, "cannot read the config file")
end

-- A base.yml of MaxText is below the model, and its defaults were chosen by nobody.
function TestWords.test_a_base_yml_of_maxtext()
    local text = "scan_layers: true\nhardware: tpu\nbase_emb_dim: 32\nprofiler_steps: 5\ndata_shuffle_seed: 7\n"
        .. "max_num_checkpoints_to_keep: None\nenable_dropout: true\nquantization: \"\"\ngcs_metrics: true\n"
    with_file("base.yml", text, function(path)
        local c, said = load({ path, "model_name=tiny", "learning_rate=1e-3" })
        lu.assertEquals({ c.base_emb_dim, c.data_shuffle_seed, c.profiler_steps }, { 64, 7, BASE.profiler_steps })
        lu.assertEquals(said, "no effect here: gcs_metrics=true; see configs/coming_from_maxtext.md")
    end)
    with_file("base.yml", "scan_layers: true\nquantization: int8\n", function(path)
        refused({ path, "model_name=tiny" }, path .. ":2: quantization: int8 and fp8 are not there yet")
    end)
end

function TestWords.test_a_model_file_of_maxtext()
    local text = "base_emb_dim: 4096\nenable_dropout: false\ndecoder_block: \"llama2\"\nvocab_size: 128_256\n"
        .. "rope_max_timescale: 500_000\n"
    with_file("llama3.1-8b.yml", text, function(path)
        local c = load({ path })
        lu.assertEquals({ c.model_name, c.vocab_size, c.rope_max_timescale, c.rope_type, c.base_mlp_dim },
            { "llama3.1-8b", 128256, 500000.0, "llama3.1", 14336 }) -- the name says which RoPE
        lu.assertEquals(load({ path, "model_name=tiny" }).vocab_size, 128256)
    end)
    with_file("deepseek9-1b.yml", "base_moe_mlp_dim: 8\nnum_experts: 8\ndecoder_block: deepseek\n", function(path)
        refused({ path }, path .. ":3: decoder_block: ", "deepseek needs experts and latent attention")
    end)
end

return TestWords
