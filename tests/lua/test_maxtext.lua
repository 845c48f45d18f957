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

function TestWords.test_the_page_is_up_to_date()
    lu.assertTrue(mx.words.page() == mx.read_file(mx.root .. "configs/coming_from_maxtext.md"),
        "run build/mxlua scripts/words.lua write=true")
end

-- ---- words ----

function TestWords.test_words_without_effect_are_listed_once()
    local config, said = load({ "model_name=tiny", "scan_layers=false", "gcs_metrics=true", "fused_qkv=true",
        "fused_mlp=false", "steps=3" })
    lu.assertEquals(config.steps, 3)
    lu.assertStrContains(said, "no effect here: scan_layers=false, gcs_metrics=true, fused_qkv=true")
    lu.assertNotStrContains(said, "fused_mlp") -- MaxText's default
    lu.assertNil(select(2, load({ "model_name=tiny", "quantization=", "num_experts=1", "profiler=",
        "enable_profiler=False", "int8_training=false" })))
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
    lu.assertEquals(load({ "model_name=gpt3-52k", "opt_type=adam_pax" }).opt_type, "adamw")
    lu.assertEquals(load({ "model_name=llama3.1-8b-Instruct" }).rope_type, "llama3.1")
    -- Google's names of v5p count the two cores of a chip, those of v7x its two dies.
    lu.assertEquals(load({ "model_name=tiny", "compile_topology=v5p-256" }).hardware, "v5p-128")
    lu.assertEquals(load({ "model_name=tiny", "compile_topology=tpu7x-128" }).hardware, "v7x-64")
    lu.assertEquals(load({ "model_name=tiny", "compile_topology=a3" }).hardware, "h100-8")
    for _, name in ipairs({ "v5p-17", "v4-8", "v5e", "a3-8", "v5e-", "" }) do
        local good, message = pcall(load, { "model_name=tiny", "compile_topology=" .. name })
        lu.assertEquals(good, name == "") -- MaxText's default
        lu.assertTrue(good or tostring(message):find("there is no such slice here", 1, true) ~= nil, name)
    end
    local _, said = load({ "model_name=tiny", "hardware=gpu" })
    lu.assertStrContains(said, "hardware=gpu (hardware=v5e-256 or compile_topology=v5e-256 simulates a pod)")
end

-- A word without effect whose value is misspelt is a mistake, too.
function TestWords.test_values_of_words_without_effect_have_the_type_of_maxtexts_default()
    refused({ "model_name=tiny", "scan_layers=flase" },
        "'scan_layers=flase' on the command line: scan_layers: expected true or false, got flase")
    refused({ "model_name=tiny", "sa_block_kv_compute=51x" },
        "sa_block_kv_compute: expected a whole number, got \"51x\"")
    refused({ "model_name=tiny", "eval_ragged_buffer_factor=[1]x" },
        "eval_ragged_buffer_factor: expected a number, got")
    load({ "model_name=tiny", "eval_ragged_buffer_factor=1", "sa_block_kv_compute=1_024", "scan_layers=False",
        "hf_path=None", "checkpoint_storage_concurrent_gb=None" })
    with_file("own.yml", "model_name: tiny\nscan_layers: 3\n", function(path)
        refused({ path }, path .. ":2: scan_layers: expected true or false, got 3")
    end)
end

-- Only the value that counts is looked at: that of the command line before that of the file, and the last of a key.
function TestWords.test_what_is_overridden_is_not_refused()
    local text = "model_name: tiny\ndataset_type: hf\nquantization: intmp\nsteps: -7\ndecoder_block: qwen3_next\n"
        .. "scan_layers: maybe\nlogical_axis_rules: [[mlp, [fsdp_transpose]]]\nenable_checkpointing: false\n"
    local words = {
        "dataset_type=synthetic", "quantization=", "steps=3", "scan_layers=true", "decoder_block=llama2",
    }
    with_file("sft.yml", text, function(path)
        local c, said = load({ path, "logical_axis_rules=[[norm,[fsdp]]]", table.unpack(words) })
        lu.assertEquals({ c.dataset_type, c.steps, c.decoder_block, c.enable_checkpointing },
            { "synthetic", 3, "llama2", false })
        lu.assertNil(said)
        local rules = {}
        for _, rule in ipairs(c.logical_axis_rules) do
            rules[rule[1]] = table.concat(rule[2], " ")
        end
        lu.assertEquals({ rules.mlp, rules.norm }, { "fsdp_transpose", "fsdp" }) -- rules add up
        for i, key in ipairs { "dataset_type", "quantization", "steps", "scan_layers", "decoder_block" } do
            local others = table.move(words, 1, #words, 2, { path })
            table.remove(others, i + 1)
            refused(others, ": " .. key .. ": ")
        end
    end)
    local c = load({ "model_name=tiny", "steps=x", "dataset_type=hf", "steps=2", "dataset_type=synthetic" })
    lu.assertEquals(c.steps, 2)
    refused({ "model_name=tiny", "dataset_type=synthetic", "dataset_type=hf" }, "dataset_type: not available")
end

-- A config file may ask for a simulation, too.
function TestWords.test_a_file_that_simulates_reads_no_data()
    with_file("own.yml", "model_name: tiny\ncompile_topology: v5e-16\ndataset_type: hf\n", function(path)
        local c, said = load({ path })
        lu.assertEquals({ c.hardware, c.dataset_type }, { "v5e-16", "synthetic" })
        lu.assertStrContains(said, "dataset_type=hf (a simulation reads no data)")
        refused({ path, "compile_topology=" }, "dataset_type: not available here")
    end)
end

function TestWords.test_custom_meshes()
    local c = load({ "model_name=tiny", "custom_mesh_and_rule=pure-fsdp" })
    lu.assertEquals({ c.dcn_data_parallelism, c.dcn_fsdp_parallelism }, { 1, -1 })
    c = load({ "model_name=tiny-moe", "custom_mesh_and_rule=ep-as-cp", "ici_expert_parallelism=2" })
    lu.assertEquals(mx.mesh.plan(c, 2).rules.activation_length, { "expert" })
    c = load({ "model_name=tiny-moe", "logical_axis_rules=[[activation_batch_moe,[data,fsdp,fsdp_transpose]]]" })
    mx.mesh.plan(c, 2)
    refused({ "model_name=tiny", "custom_mesh_and_rule=fsdp-as-dp-for-attn" }, "[[embed_attn,[expert]]]")
    refused({ "model_name=tiny", "custom_mesh_and_rule=pure" }, "custom_mesh_and_rule: expected one of cp-as-ep, ")
end

function TestWords.test_what_is_not_there_is_refused_with_what_is()
    refused({ "model_name=tiny", "quantization=intmp" },
        "'quantization=intmp' on the command line: quantization: not available here: mixed precision of int8 and int4")
    lu.assertEquals(load({ "model_name=tiny", "quantization=nanoo_fp8" }).quantization, "fp8_nanoo")
    refused({ "model_name=tiny", "moe_expert_input_dim=8" }, "moe_expert_input_dim: ")
    refused({ "model_name=tiny", "dataset_type=hf", "hf_path=c4" }, "dataset_type: ", "to_json('data.jsonl')",
        "scripts/prepare.lua input=data.jsonl out=data.h5 tokenizer=FOLDER", "dataset_type=hdf5 dataset_path=data.h5")
    refused({ "model_name=tiny", "profiler=nsys" }, "trace_file=FILE")
    refused({ "model_name=tiny", "attention=paged" }, "attention: expected one of autoselected, flash, ")
    refused({ "model_name=tiny", "base_output_directory=gs://bucket" }, "base_output_directory: 'gs://bucket'",
        "mount that store, or give a folder, such as checkpoints")
    lu.assertNotStrContains(select(2, load({ "model_name=tiny", "hf_access_token=abc" })), "abc")
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

-- A simulation reads no data and writes no checkpoints.
function TestWords.test_stores_beside_a_simulation()
    local stores = { "base_output_directory=gs://bucket", "dataset_type=hf", "hf_path=allenai/c4" }
    local c, said = load({ "model_name=tiny", "compile_topology=v5e-16", "hardware=gpu", table.unpack(stores) })
    lu.assertEquals({ c.base_output_directory, c.dataset_type, c.hardware }, { "checkpoints", "synthetic", "v5e-16" })
    for _, word in ipairs(stores) do
        lu.assertStrContains(said, word)
    end
    lu.assertNotStrContains(said, "hardware=gpu")
    c, said = load({ "model_name=tiny", "hardware=v5e-16", "dataset_path=gs://bucket" })
    lu.assertEquals(c.dataset_path, "")
    lu.assertStrContains(said, "dataset_path=gs://bucket")
    refused({ "model_name=tiny", stores[1] }, "is an address of gs://")
    refused({ "model_name=tiny", stores[2] }, "scripts/prepare.lua")
end

function TestWords.test_a_tokenizer_beside_made_data()
    local c, said = load({ "model_name=tiny", "dataset_type=synthetic", "tokenizer_path=assets/tokenizer.llama2" })
    lu.assertEquals(c.tokenizer_path, "")
    lu.assertStrContains(said, "tokenizer_path=assets/tokenizer.llama2 (not there")
end

function TestWords.test_steps_of_a_simulation()
    for word, steps in pairs({ ["log_period=1"] = 3, ["steps=7"] = 7 }) do
        local c = mx.config.load({ "model_name=tiny", "hardware=v5e-4", word }, { quiet = true })
        mx.sim.stop()
        lu.assertEquals(c.steps, steps)
    end
end

function TestWords.test_keys_of_a_block()
    refused({ "model_name=tiny", "lora.enable_lora=true" }, "LoRA is not there yet")
    refused({ "model_name=tiny", "lora.enable_loar=true" }, "unknown key")
end

function TestWords.test_words_of_what_is_switched_off()
    local c, said = load({ "model_name=tiny", "enable_checkpointing=false", "checkpoint_period=20",
        "async_checkpointing=False", "dataset_type=synthetic", "packing=false" })
    lu.assertEquals(c.checkpoint_period, 20)
    lu.assertEquals(said, "no effect here: async_checkpointing=false (enable_checkpointing=false), "
        .. "checkpoint_period=20 (enable_checkpointing=false), packing=false (dataset_type=synthetic); "
        .. "see configs/coming_from_maxtext.md")
    refused({ "model_name=tiny", "packing=false" }, "packing has no effect with dataset_type = synthetic")
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
    with_file("base.yml", "scan_layers: true\nquantization: intmp\n", function(path)
        refused({ path, "model_name=tiny" }, path .. ":2: quantization: not available here: mixed precision of int8")
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
    with_file("llama9-1b.yml", "base_moe_mlp_dim: 8\nnum_experts: 8\ndecoder_block: qwen3_next\n", function(path)
        refused({ path }, path .. ":3: decoder_block: ", "qwen3_next needs the gated delta rule")
    end)
end

-- ---- the environment ----

-- What a program with these variables and words prints.
local function with_environment(variables, words)
    local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")
    local code = "local c = mx.config.load({ " .. words .. " }) print(c.steps, c.adam_b1, c.dropout_rate)"
    local pipe = io.popen(("%s '%s' --threads 1 -e '%s' 2>&1"):format(variables, program, code))
    local said = pipe:read("a")
    pipe:close()
    return said
end

function TestWords.test_variables_give_words()
    lu.assertEquals(with_environment("M_STEPS=1_0 M_ENABLE_DROPOUT=false M_ADAM_B1=0.5 M_SCAN_LAYERS=true m_steps=3",
        '"model_name=tiny"'), "10\t0.5\t0.0\n")
    lu.assertStrContains(with_environment("M_STEPS=10", '"steps=10"'),
        "'steps=10' on the command line: M_STEPS in the environment gives the same key")
    for variable, message in pairs({
        ["M_STEPS=ten"] = "M_STEPS in the environment: steps: expected a whole number",
        ["M_QUANTIZATION=intmp"] = "M_QUANTIZATION in the environment: quantization: ",
    }) do
        lu.assertStrContains(with_environment(variable, ""), message)
    end
    lu.assertStrContains(with_environment("M_STEP=3 M_STEPS=2", '"model_name=tiny"'),
        "no effect here: M_STEP (a variable of the environment, but no key)")
end

-- ---- command lines as they are published ----

-- Scripts, documents and benchmark lists of MaxText, with their words. `on`: the chips that the script is for, where
-- the line does not name them. `params`: by hand from MaxText's sizes (16 layers of 2048, 16 heads of 128 and an MLP of
-- 7168, 32,000 tokens, and the rule of global_parameter_scale), or as published. `refused`: what the message says.
local BENCH = "steps=15 enable_checkpointing=false base_output_directory=out dataset_type=synthetic "
local TRILLIUM = "enable_checkpointing=False dataset_path=gs://max-datasets-rogue dataset_type=synthetic "
    .. "attention=flash use_iota_embed=True profiler=xplane "
local BLOCKS = "sa_block_q=2048 sa_block_kv=2048 sa_block_kv_compute=2048 sa_block_q_dkv=2048 sa_block_kv_dkv=2048 "
    .. "sa_block_kv_dkv_compute=2048 sa_block_q_dq=2048 sa_block_kv_dq=2048 "
local QUICK = "MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=2 max_target_length=4096 "
    .. "scan_layers=true steps=15 use_iota_embed=true logits_dot_in_fp32=false enable_checkpointing=false "
    .. "base_output_directory=local_train dataset_path=local dataset_type=synthetic hardware=gpu run_name=job "
local LINES = {
    gpu_quick_run = { "MaxText/configs/base.yml hardware=gpu run_name=job", on = "h100-8", params = 1104218112 },
    gpu_llama2_7b = { QUICK .. "remat_policy=minimal attention=dot_product", on = "h100-8", params = 6738415616 },
    gpu_llama2_7b_flash = {
        QUICK .. "remat_policy=minimal_flash attention=cudnn_flash_te", on = "h100-8", params = 6738415616,
    },
    v5e_128b = {
        "src/maxtext/configs//base.yml per_device_batch_size=1 remat_policy=qkv_proj_offloaded "
            .. "global_parameter_scale=128 ici_fsdp_parallelism=16 ici_tensor_parallelism=16 max_target_length=2048 "
            .. "use_iota_embed=true reuse_example_batch=1 attention=flash gcs_metrics=true "
            .. "fused_qkv=True fused_mlp=True " .. BENCH, on = "v5e-256", params = 125079396352,
    },
    v5e_16b = {
        "src/maxtext/configs//base.yml per_device_batch_size=6 remat_policy=full global_parameter_scale=16 "
            .. "max_target_length=2048 use_iota_embed=true reuse_example_batch=1 attention=flash gcs_metrics=true "
            .. BENCH, on = "v5e-256", params = 15831666688,
    },
    v5e_llama2_70b = {
        "src/maxtext/configs//base.yml model_name=llama2-70b tokenizer_path=assets/tokenizer.llama2 "
            .. "per_device_batch_size=2 remat_policy=qkv_proj_offloaded use_iota_embed=true " .. BENCH,
        on = "v5e-256", params = 68976648192,
    },
    v5e_llama2_7b = {
        "src/maxtext/configs//base.yml model_name=llama2-7b tokenizer_path=assets/tokenizer.llama2 "
            .. "per_device_batch_size=4 remat_policy=save_qkv_proj use_iota_embed=true " .. BENCH,
        on = "v5e-256", params = 6738415616,
    },
    v5e_gpt3_175b = {
        "src/maxtext/configs//base.yml model_name=gpt3-175b per_device_batch_size=0.5 remat_policy=full "
            .. "ici_fsdp_parallelism=-1 ici_tensor_parallelism=16 max_target_length=2048 reuse_example_batch=1 "
            .. "gcs_metrics=true attention=flash " .. BENCH, on = "v5e-256", params = 174780997632,
    },
    v6e_llama2_7b = {
        "src/maxtext/configs/base.yml model_name=llama2-7b per_device_batch_size=12 remat_policy=full "
            .. "ici_fsdp_parallelism=-1 max_target_length=4096 reuse_example_batch=1 gcs_metrics=true attention=flash "
            .. "sa_block_q=1024 sa_block_q_dkv=2048 sa_block_q_dq=2048 " .. BENCH, on = "v6e-256", params = 6738415616,
    },
    v6e_gemma3_27b = {
        "src/maxtext/configs/base.yml model_name=gemma3-27b per_device_batch_size=2 remat_policy=full "
            .. "ici_fsdp_transpose_parallelism=256 ici_fsdp_parallelism=-1 max_target_length=8192 "
            .. "reuse_example_batch=1 gcs_metrics=true attention=flash sa_block_q=2048 "
            .. "sa_block_q_dkv=2048 sa_block_q_dq=2048 " .. BENCH,
        on = "v6e-256",
    },
    trillium_llama31_8b = {
        "model_name=llama3.1-8b per_device_batch_size=4 ici_fsdp_parallelism=-1 remat_policy=custom "
            .. "decoder_layer_input=offload out_proj=offload query_proj=offload key_proj=offload value_proj=offload "
            .. "max_target_length=8192 sa_use_fused_bwd_kernel=True skip_first_n_steps_for_profiler=10 "
            .. "profiler_steps=5 " .. BLOCKS .. TRILLIUM, on = "v6e-256", params = 8030261248,
    },
    v5p_llama31_405b = {
        "model_name=llama3.1-405b per_device_batch_size=2 ici_fsdp_parallelism=-1 max_target_length=8192 "
            .. "gcs_metrics=True remat_policy=custom context=offload mlpwo=offload num_vocab_tiling=4 "
            .. "reuse_example_batch=1 skip_first_n_steps_for_profiler=5 profiler_steps=5 compile_topology=v5p-1024 "
            .. BLOCKS .. TRILLIUM, params = 405853388800,
    },
    v5p_128b = {
        "src/maxtext/configs/base.yml per_device_batch_size=1 remat_policy=minimal global_parameter_scale=128 "
            .. "ici_fsdp_parallelism=-1 ici_tensor_parallelism=8 max_target_length=2048 use_iota_embed=true "
            .. "reuse_example_batch=1 gcs_metrics=true attention=flash quantization= " .. BENCH,
        on = "v5p-512", params = 125079396352,
    },
    ahead_of_time = {
        "compile_topology=v5e-256 compile_topology_num_slices=2 global_parameter_scale=16 per_device_batch_size=4",
        params = 15831666688,
    },
    tutorial_hf = {
        "model_name=deepseek2-16b dataset_type=hf hf_path=allenai/c4 hf_data_dir=en train_split=train "
            .. "tokenizer_type=huggingface tokenizer_path=deepseek-ai/DeepSeek-V2-Lite steps=10",
        refused = "dataset_type: not available here: save the data set as JSON lines",
    },
    localhost = { "run_name=r base_output_directory=out dataset_type=synthetic steps=10", on = "v5e-8",
        params = 1104218112 },
    localhost_qwen3 = { "model_name=qwen3-4b run_name=r base_output_directory=out dataset_type=synthetic steps=10",
        on = "v5e-64", params = 4022468096 },
    v6e_mixtral = {
        "src/maxtext/configs/base.yml model_name=mixtral-8x7b per_device_batch_size=32 remat_policy=full "
            .. "ici_fsdp_parallelism=-1 max_target_length=1024 reuse_example_batch=1 gcs_metrics=true attention=flash "
            .. BENCH, on = "v6e-256", params = 46702792704,
    },
    estimator = {
        "maxtext/configs/base.yml compile_topology=tpu7x-1024 compile_topology_num_slices=1 model_name=llama3.1-405b "
            .. "max_target_length=32768 ici_context_parallelism=8 ici_fsdp_parallelism=-1 log_config=False "
            .. "write_estimator_result=False per_device_batch_size=0.25", params = 405853388800,
    },
    trillium_llama2_70b = {
        "model_name=llama2-70b per_device_batch_size=4 ici_fsdp_parallelism=1 ici_fsdp_transpose_parallelism=-1 "
            .. "ici_tensor_parallelism=1 remat_policy=full max_target_length=4096 gcs_metrics=True "
            .. "reuse_example_batch=1 sa_block_q=1024 sa_block_q_dkv=2048 sa_block_q_dq=2048 " .. TRILLIUM,
        on = "v6e-256", params = 68976648192,
    },
}

local function words_of(line)
    local words = {}
    for word in line[1]:gmatch("%S+") do
        words[#words + 1] = word
    end
    return words
end

for name, line in pairs(LINES) do
    TestLines["test_" .. name] = function()
        local words = words_of(line)
        if line.refused then
            refused(words, line.refused)
            return
        end
        local config = load(words)
        local hardware = line.on or config.hardware
        local result = mx.plan.simulate(config, hardware, config.num_slices, { limited = true })
        if line.params then
            lu.assertEquals(result.params, line.params)
        end
        lu.assertTrue(result.peak_bytes < result.memory_bytes, result.peak_bytes)
        lu.assertTrue(result.mfu > 5 and result.mfu < 100, result.mfu)
    end
end
