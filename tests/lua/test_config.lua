-- Configuration: precedence, types, and what is refused with which words.

local lu = require "luaunit"
local mx = require "mx"

TestConfig = {}

-- A config file with this content, gone again after fn.
local function with_file(content, fn)
    local path = os.tmpname()
    local file = assert(io.open(path, "wb"))
    file:write(content)
    file:close()
    local done, message = pcall(fn, path)
    os.remove(path)
    if not done then
        error(tostring(message), 0)
    end
end

local function refused(words, ...)
    local loaded, message = pcall(mx.config.load, words)
    lu.assertFalse(loaded)
    lu.assertEquals(getmetatable(message).__name, "mx.refusal") -- what is told without a traceback
    message = tostring(message)
    for _, part in ipairs({ ... }) do
        lu.assertStrContains(message, part)
    end
    lu.assertNotStrContains(message, "\n")
end

function TestConfig.test_base_values()
    local c = mx.config.load({})
    lu.assertEquals(c.model_name, "default")
    lu.assertEquals(c.adam_b2, 0.95)
    lu.assertEquals(math.type(c.steps), "integer")
    lu.assertEquals(c.mlp_activations, { "silu", "linear" })
end

-- MaxText 0.2.5's base.yml, for the keys whose meaning is the same.
function TestConfig.test_defaults_are_those_of_maxtext()
    local c = mx.config.load({})
    for key, value in pairs({
        base_emb_dim = 2048, base_num_query_heads = 16, base_num_kv_heads = 16, head_dim = 128, base_mlp_dim = 7168,
        base_num_decoder_layers = 16, vocab_size = 32000, normalize_embedding_logits = true, steps = 150001,
        per_device_batch_size = 12, max_target_length = 2048, learning_rate = 3e-5, warmup_steps_fraction = 0.1,
        adam_b1 = 0.9, adam_b2 = 0.95, adam_eps = 1e-8, adam_weight_decay = 0.1, gradient_clipping_threshold = 1.0,
        logits_via_embedding = false, dtype = "bfloat16", weight_dtype = "float32", remat_policy = "full",
        dataset_type = "synthetic",
    }) do
        lu.assertEquals(c[key], value, key)
    end
end

-- Counted by hand: L layers of (2 Q + 2 KV) E D weights of attention, 3 E M of the MLP and 2 E of norms; the last norm,
-- and two tables of V E. MaxText prints 1.104 billion for its defaults.
function TestConfig.test_global_parameter_scale_gives_maxtext_s_models()
    for scale, sizes in pairs({
        [1] = { L = 16, E = 2048, H = 16, M = 7168 }, [2] = { L = 16, E = 2048, H = 32, M = 14336 },
        [16] = { L = 32, E = 4096, H = 64, M = 28672 }, [128] = { L = 64, E = 8192, H = 128, M = 57344 },
    }) do
        local E = sizes.E
        local layer = 4 * sizes.H * 128 * E + 3 * E * sizes.M + 2 * E
        local c = mx.config.load({ "global_parameter_scale=" .. scale })
        lu.assertEquals(mx.models.count(mx.models.shape(c)), sizes.L * layer + E + 2 * 32000 * E, scale)
    end
    lu.assertEquals(mx.models.count(mx.models.shape(mx.config.load({}))), 1104218112)
    local count = mx.models.count(mx.models.shape(mx.config.load({ "global_parameter_scale=128" })))
    lu.assertEquals(count, 125079396352) -- "125 B"
end

function TestConfig.test_the_last_one_wins()
    with_file("model_name: tiny\nsteps: 7\nbase_mlp_dim: 96\nlearning_rate: 0.5\n", function(path)
        local c = mx.config.load({ path, "steps=9" })
        lu.assertEquals(c.base_emb_dim, 64) -- the model file
        lu.assertEquals(c.base_mlp_dim, 96) -- the config file over the model file
        lu.assertEquals(c.learning_rate, 0.5)
        lu.assertEquals(c.steps, 9) -- the word over the config file
    end)
end

function TestConfig.test_a_word_names_the_model_over_the_file()
    with_file("model_name: tiny\n", function(path)
        lu.assertEquals(mx.config.load({ path, "model_name=gpt2-124m" }).base_emb_dim, 768)
    end)
end

function TestConfig.test_words_take_the_key_s_type()
    local c = mx.config.load({
        "run_name=2024", "use_rope=false", "learning_rate=1", "mlp_activations=[gelu]", "per_device_batch_size=6.0",
    })
    lu.assertEquals(c.run_name, "2024")
    lu.assertFalse(c.use_rope)
    lu.assertEquals(math.type(c.learning_rate), "float")
    lu.assertEquals(c.mlp_activations, { "gelu" })
    lu.assertEquals(math.type(c.per_device_batch_size), "integer")
    lu.assertEquals(mx.config.load({ "mlp_activations=gelu,linear" }).mlp_activations, { "gelu", "linear" })
end

-- A fraction of a sequence a rank needs ranks that work together on one.
function TestConfig.test_fractions_of_a_sequence()
    local c = mx.config.load({ "per_device_batch_size=0.5", "max_target_length=16", "ici_context_parallelism=2" })
    lu.assertEquals(c.per_device_batch_size, 0.5)
    lu.assertEquals(mx.data.sequences(c, mx.mesh.plan(c, 8)), 1)
    c = mx.config.load({ "per_device_batch_size=2.25", "max_target_length=16", "ici_tensor_parallelism=4" })
    lu.assertEquals(mx.data.sequences(c, mx.mesh.plan(c, 8)), 9)
    lu.assertErrorMsgContains("'per_device_batch_size=2.25' on the command line: per_device_batch_size: 2 ranks work "
        .. "together on the same sequences, so that they have 4.5 of them: expected a whole number", function()
        local two = mx.config.load({ "per_device_batch_size=2.25", "ici_tensor_parallelism=2" })
        mx.data.sequences(two, mx.mesh.plan(two, 8))
    end)
    for _, text in ipairs({ "0", "-0.5", "half", "[1]", ".nan", "" }) do
        refused({ "per_device_batch_size=" .. text }, "per_device_batch_size: expected")
    end
    with_file("per_device_batch_size: 0.5\n", function(path)
        lu.assertErrorMsgContains(path .. ":1: per_device_batch_size: 1 rank works on the same sequences", function()
            mx.data.open(mx.config.load({ path }))
        end)
        lu.assertEquals(mx.config.dump(mx.config.load({ path }), true), "per_device_batch_size: 0.5\n")
    end)
end

function TestConfig.test_unknown_keys()
    refused({ "stepss=3" }, "'stepss=3' on the command line", "unknown key 'stepss'", "did you mean 'steps'")
    refused({ "learning_rat=3" }, "did you mean 'learning_rate'")
    refused({ "quxzyplugh=3" }, "unknown key", "configs/base.yml lists them all")
    with_file("# a comment\nsteps: 3\n\nremat_polcy: full\n", function(path)
        refused({ path }, path .. ":4:", "did you mean 'remat_policy'")
    end)
end

function TestConfig.test_wrong_types()
    refused({ "steps=ten" }, "'steps=ten' on the command line: steps", "expected a whole number", "'ten'")
    refused({ "steps=2.5" }, "expected a whole number")
    refused({ "learning_rate=fast" }, "expected a number")
    refused({ "use_rope=maybe" }, "expected true or false")
    with_file("steps: [1, 2]\n", function(path)
        refused({ path }, path .. ":1:", "expected a whole number, got [1, 2]")
    end)
    with_file("run_name: 3\n", function(path)
        refused({ path }, "expected a string")
    end)
    with_file("- steps\n- 3\n", function(path)
        refused({ path }, "key: value")
    end)
end

function TestConfig.test_values_out_of_range()
    refused({ "steps=0" }, "expected at least 1, or -1 for learning_rate_schedule_steps, got '0'")
    refused({ "dropout_rate=1" }, "expected a number below 1")
    refused({ "remat_policy=minimal_with_contex" }, "one of none, ", "did you mean minimal_with_context?")
    refused({ "dtype=float16" }, "one of bfloat16, float32")
    refused({ "mlp_activations=[linear]" }, "[silu, linear]")
    refused({ "learning_rate=nan" }, "expected a number")
    refused({ "learning_rate=1e999" }, "expected a number, got '1e999'")
    with_file("learning_rate: .inf\n", function(path)
        refused({ path }, "expected a number, got inf")
    end)
end

-- Files that are no config, each with where it goes wrong and what to do.
function TestConfig.test_files_that_are_no_config()
    for content, parts in pairs({
        ["steps: 5\nsteps: 7\n"] = { ":2:1: key 'steps' is given twice: first in line 1; keep one" },
        ["\tsteps: 5\n"] = { ":1:1: ", "indent with spaces, not with a tab" },
        ["steps: 5\n\tlog_period: 3\n"] = { ":2:1: ", "indent with spaces, not with a tab" },
        ["steps: 5\nrun_name: a: b\n"] = { ":2:12: ", "lines of the form 'key: value'", "quote a value" },
        ["steps 5\nrun_name: a\n"] = { ":2:9: ", "lines of the form 'key: value'" },
        ["run_name: [a\nsteps: 5\n"] = { ":2:6: ", "close the bracket" },
        ["run_name: \"a\nsteps: 5\n"] = { "close the quotation mark" },
        ["run_name: @a\n"] = { ":1:11: ", "quote a value that begins with it" },
        ["a: &x 1\nb: *x\n"] = { ":1:4: ", "write the value out" },
        ["steps: 1\n---\nsteps: 2\n"] = { ":2:1: a second document" },
        ["steps: 1\nrun_name: \xff\n"] = { ":2:11: ", "expected a text in UTF-8" },
        ["steps: 1\0\n"] = { ":1:9: ", "expected a text in UTF-8" },
        ["steps: " .. ("["):rep(1000)] = { ":1:", "nested deeper" },
        ["- steps\n- 5\n"] = { "expected lines of the form 'key: value'" },
        ["steps\n"] = { "expected lines of the form 'key: value'" },
        ["steps: {a: 1}\n"] = { ":1: steps: expected a whole number, got {a: 1}" },
        ["steps: [1, 2]\n"] = { ":1: steps: expected a whole number, got [1, 2]" },
        ["\nsteps:\n"] = { ":2: steps: expected a whole number, got null" },
        ["mlp_activations: silu\n"] = { "expected a list such as [silu, linear], got silu" },
        ["logical_axis_rules: {mlp: [tensor]}\n"] = { "expected a list of [logical name", "got {mlp: [tensor]}" },
        ["run_name: |\n  a\n  b\n"] = { ":1: run_name: expected a text of one line in UTF-8, got \"a\\x0ab\\x0a\"" },
        ["run_name: true\n"] = { "run_name: expected a string, got true" },
    }) do
        with_file(content, function(path)
            refused({ path }, path, table.unpack(parts))
        end)
    end
    refused({ mx.root .. "configs" }, "cannot read the config file", "it is a folder")
end

function TestConfig.test_texts_that_are_no_mistake()
    for content, steps in pairs({
        ["\xef\xbb\xbfsteps: 3\n"] = 3, [""] = 150001, ["# nothing\n"] = 150001, ["---\nsteps: 4\n...\n"] = 4,
        ["steps: 5 # c\r\nrun_name: x\r\n"] = 5, ["{steps: 6}"] = 6,
    }) do
        with_file(content, function(path)
            lu.assertEquals(mx.config.load({ path }).steps, steps)
        end)
    end
end

-- A word and a line of a file take the same numbers and truth values: those of YAML 1.2.
function TestConfig.test_one_rule_for_numbers_and_truth_values()
    local function each(key, text, fn)
        fn({ ("%s=%s"):format(key, text) })
        with_file(("%s: %s\n"):format(key, text), function(path)
            fn({ path })
        end)
    end
    for text, value in pairs({
        ["12"] = 12, ["+12"] = 12, ["012"] = 12, ["0x10"] = 16, ["0o17"] = 15, ["1e3"] = 1000, ["5.0"] = 5, ["5."] = 5,
        ["1_000"] = 1000, ["150_001"] = 150001, ["1_2_3"] = 123,
    }) do
        each("steps", text, function(words)
            lu.assertEquals(mx.config.load(words).steps, value, text)
        end)
    end
    for _, text in ipairs({
        "1__000", "1_", "_1", "1_000.5", "0x1_0", "0x1p4", "1,000", "5.5", "1e400", "99999999999999999999",
        "0xffffffffffffffff", ".inf", ".nan", "nan", "inf", "--5", "1e", "five", "~", "null", "true", "[5]", "0b11",
    }) do
        each("steps", text, function(words)
            refused(words)
        end)
    end
    each("learning_rate", "1_000.5", function(words)
        lu.assertEquals(mx.config.load(words).learning_rate, 1000.5)
    end)
    refused({ "steps=" }, "expected a whole number, got ''")
    refused({ "steps=5 6" }, "expected a whole number, got '5 6'")
    for _, text in ipairs({ ".inf", "-.inf", ".nan", "1e400", "1e39", "-4e38", "0x1p3", "yes" }) do
        each("learning_rate", text, function(words)
            refused(words)
        end)
    end
    refused({ "learning_rate=1e39" }, "expected a number of at most 3.4e+38 in magnitude")
    for text, value in pairs({ ["true"] = true, True = true, FALSE = false, ["false"] = false }) do
        each("use_qk_norm", text, function(words)
            lu.assertEquals(mx.config.load(words).use_qk_norm, value)
        end)
    end
    for _, text in ipairs({ "yes", "on", "1", "0", "tRuE", "null" }) do
        each("use_qk_norm", text, function(words)
            refused(words, "expected true or false")
        end)
    end
end

function TestConfig.test_words_that_no_file_could_hold()
    refused({ "run_name=a\nb" },
        "'run_name=a\\x0ab' on the command line: run_name: expected a text of one line in UTF-8")
    refused({ "model_name=a\nb" }, "no model 'a\\x0ab'")
    refused({ "run_name=\xff" }, "expected a text of one line in UTF-8")
    refused({ "steps=" .. ("9"):rep(100000) }, "expected a whole number")
    lu.assertEquals(mx.config.load({ "steps=3", "steps=4" }).steps, 4) -- the last one
    -- Strings that YAML takes for something else are written in quotation marks.
    for _, name in ipairs({ "null", "True", "FALSE", "~", "5", "1e3", "a: b", "a\"b\\c" }) do
        with_file(mx.config.dump(mx.config.load({ "run_name=" .. name })), function(path)
            lu.assertEquals(mx.config.load({ path }).run_name, name)
        end)
    end
end

function TestConfig.test_combinations()
    refused({ "base_num_kv_heads=3" }, "expected a divisor of base_num_query_heads = 16, got 3")
    refused({ "global_parameter_scale=6" }, "expected a power of two, got 6")
    refused({ "head_dim=63" }, "63 components of head_dim = 63 are not an even number")
    refused({ "model_name=gpt2-124m", "max_target_length=2048" }, "trainable_position_size = 1024")
    refused({ "attention_type=local_sliding" }, "'attention_type=local_sliding' on the command line: attention_type: ")
    refused({ "sliding_window_size=4" }, "'sliding_window_size=4' on the command line: sliding_window_size: ")
    refused({ "local_rope_max_timescale=100" }, "local_rope_max_timescale: has no effect without local layers")
    refused({ "parallel_block=true", "use_post_ffw_norm=true" }, "use_post_ffw_norm: does not go with parallel_block")
    refused({ "decoder_block=gemma2" }, "decoder_block: local layers need a sliding_window_size above 0, got 0")
    refused({ "decoder_block=gemma3", "sliding_window_size=4", "attention_type=full" },
        "attention_type: expected global, because decoder_block = gemma3 says which layers are local and")
    refused({ "layer_types=[local,globe]" }, "layer_types: expected a list of local and global, got [local, globe]")
    refused({ "layer_types=[local]" }, "layer_types: local layers need a sliding_window_size above 0, got 0")
    refused({ "layer_types=[global]", "sliding_window_size=4" }, "sliding_window_size: has no effect without local")
    refused({ "decoder_block=olmo3", "sliding_window_size=4", "use_post_attn_norm=false" },
        "use_post_attn_norm: expected true, because decoder_block = olmo3 has no other norms")
    refused({ "decoder_block=simple" }, "(simple needs layers without attention, which this engine ", "got 'simple'")
    refused({ "decoder_block=llama4" }, "chunk_attn_window_size: expected tokens of a chunk")
    refused({ "chunk_attn_window_size=4" }, "chunk_attn_window_size: has no effect without layers that attend")
    refused({ "nope_layer_interval=4" }, "nope_layer_interval has no effect with decoder_block = llama2")
    refused({ "decoder_block=llama4", "chunk_attn_window_size=4", "temperature_tuning=true" },
        "temperature_tuning: has no effect without nope_layer_interval")
    refused({ "decoder_block=llama4", "chunk_attn_window_size=4", "num_experts=4", "num_experts_per_tok=2" },
        "decoder_block: llama4 has one expert for each token")
    refused({ "decoder_block=llama4", "chunk_attn_window_size=4", "attention_type=local_sliding" },
        "attention_type: expected global, because decoder_block = llama4 says which layers are local and")
    refused({ "mlp_activations=[sigmoid,linear]" }, "[sigmoid, linear] is for decoder_block = gpt_oss, not for llama2")
    refused({ "decoder_block=gpt_oss", "mlp_activations=[silu,linear]" }, "expected [sigmoid, linear] with")
    refused({ "decoder_block=gpt_oss", "mlp_activations_limit=-1" }, "mlp_activations_limit: expected a limit above 0")
    refused({ "mlp_activations_limit=7" }, "mlp_activations_limit has no effect with decoder_block = llama2")
    refused({ "mlp_bias=true" }, "mlp_bias has no effect without num_experts")
    refused({ "decoder_block=gpt_oss", "num_experts=4", "routed_bias_update_rate=0.1" },
        "routed_bias_update_rate: expected 0, because the biases of routers are trained with decoder_block = gpt_oss")
    refused({ "decoder_block=deepseek", "attention_sink=true" }, "attention_sink: expected false: attention_type = mla")
    refused({ "capacity_factor=1" }, "capacity_factor has no effect without num_experts")
    refused({ "num_experts=4", "capacity_factor=1" }, "capacity_factor has no effect with sparse_matmul = true")
    refused({ "num_experts=4", "num_experts_per_tok=5" }, "expected at most num_experts = 4, got 5")
    refused({ "num_experts=4", "use_bias=true" }, "use_bias: expected false: mlp_bias = true gives experts biases")
    refused({ "num_experts=4", "first_num_dense_layers=16" }, "leaves none of the 16 layers for the 4 experts")
    refused({ "num_experts=4", "interleave_moe_layer_step=17" }, "leaves none of the 16 layers for the 4 experts")
    refused({ "use_ring_of_experts=true" }, "use_ring_of_experts has no effect without num_experts")
    refused({ "num_experts=4", "use_ring_of_experts=maybe" }, "use_ring_of_experts: expected true, false or auto, got")
    for word, value in pairs { ["true"] = true, ["false"] = false, auto = "auto" } do
        local c = mx.config.load { "num_experts=4", "use_ring_of_experts=" .. word }
        lu.assertEquals(c.use_ring_of_experts, value)
    end
    refused({ "num_experts=4", "num_moe_token_chunks=2", "use_ring_of_experts=auto" },
        "num_moe_token_chunks has no effect with use_ring_of_experts = auto")
    refused({ "num_experts=4", "ragged_buffer_factor=0.5" }, "ragged_buffer_factor: expected at least 1, or -1 for as "
        .. "many rows as are needed, got '0.5'")
    refused({ "num_experts=4", "hardware=v5e-8", "ragged_buffer_factor=1.25", "simulated_expert_imbalance=1.5" },
        "simulated_expert_imbalance: expected at most ragged_buffer_factor = 1.25, the rows that buffers have, got 1.5")
    refused({ "num_experts=4", "n_routing_groups=2" }, "topk_routing_group: goes with n_routing_groups")
    refused({ "num_experts=4", "routing_group_score=max" }, "has no effect without n_routing_groups")
    refused({ "num_experts=4", "n_routing_groups=3", "topk_routing_group=1" }, "a divisor of num_experts = 4, got 3")
    refused({ "num_experts=4", "n_routing_groups=2", "topk_routing_group=3" }, "n_routing_groups = 2, got 3")
    refused({ "num_experts=4", "n_routing_groups=2", "topk_routing_group=1", "num_experts_per_tok=3" },
        "1 groups of 2 experts have fewer than 3")
    refused({ "num_experts=4", "routed_bias_update_rate=0.1" }, "has no effect with routed_bias = false")
    refused({ "num_experts=4", "use_random_routing=true", "routed_bias=true" }, "routed_bias has no effect with use_r")
    refused({ "decoder_block=gema2" }, "did you mean gemma2?")
    refused({ "dataset_type=text" }, "needs dataset_path")
    refused({ "dataset_type=text", "dataset_path=x", "vocab_size=100" }, "at least 256, got 100")
end

function TestConfig.test_sizes_that_no_machine_has()
    for word, part in pairs({
        ["vocab_size=2147483648"] = "expected at most 2147483647",
        ["max_target_length=16777217"] = "expected at most 16777216",
        ["base_num_decoder_layers=9223372036854775807"] = "expected at most 2147483647",
        ["head_dim=2147483646"] = "the model would have weights of 34359738336 columns (with head_dim)",
        ["per_device_batch_size=2147483647"] = "sequences of max_target_length = 2048 are 4.4e+12 tokens",
        ["ici_tensor_parallelism=4611686018427387904"] = "expected at most 1000000",
        ["steps=9223372036854775807"] = "expected a whole number of at most 9007199254740992",
        ["log_period=9007199254740993"] = "expected a whole number of at most 9007199254740992",
    }) do
        refused({ word }, word:match("^[^=]+"), part)
    end
    refused({ "global_parameter_scale=1099511627776" }, "the model would have", "parameters in 131072 layers")
    refused({ "base_emb_dim=2147483647", "base_mlp_dim=2147483647" }, "the model would have", "parameters")
    lu.assertEquals(mx.config.load({ "init_weights_seed=9223372036854775807" }).init_weights_seed, math.maxinteger)
end

function TestConfig.test_keys_without_effect()
    refused({ "sgd_momentum=0.9" }, "sgd_momentum has no effect with opt_type = adamw")
    refused({ "opt_type=lion", "adam_b1=0.8" }, "adam_b1 has no effect with opt_type = lion")
    refused({ "muon_beta=0.9" }, "muon_beta has no effect with opt_type = adamw")
    refused({ "opt_type=muon", "num_experts=4" }, "muon updates matrices")
    refused({ "opt_type=adafactor", "adafactor_beta2_decay=0.5" }, "adafactor_beta2_decay")
    refused({ "dataset_path=x" }, "no effect with dataset_type = synthetic")
    refused({ "use_rope=false", "rope_max_timescale=500" }, "no effect with use_rope = false")
    refused({ "use_bias=true", "attention_bias=true" }, "no effect with use_bias = true")
    refused({ "rope_factor=4" }, "no effect with rope_type = default")
    refused({ "rope_type=llama3" }, "did you mean llama3.1?")
    refused({ "rope_type=llama3.1", "llama_rope_high_freq_factor=0.5" },
        "expected at least llama_rope_low_freq_factor = 1, got 0.5")
    refused({ "rope_interleave=false" }, "no effect with rope_type = default")
    refused({ "rope_type=yarn", "rope_linear_scaling_factor=2" }, "no effect with rope_type = yarn")
    refused({ "rope_type=yarn", "beta_fast=0.5" }, "beta_fast: expected at least beta_slow = 1")
    refused({ "head_dim=16", "partial_rotary_factor=0.2" },
        "partial_rotary_factor: use_rope rotates pairs, and 3 components of head_dim = 16 are not an even number")
    -- A model file describes more than one run: what it sets does not count.
    lu.assertFalse(mx.config.load({ "model_name=llama3-8b", "use_rope=false" }).use_rope)
end

function TestConfig.test_missing_files()
    refused({ "model_name=llama2-7B" }, "no model 'llama2-7B'", "did you mean 'llama2-7b'")
    refused({ "model_name=tiny-gpt" }, "did you mean 'tiny-gpt2'")
    refused({ "model_name=nothing-near" }, "there are default, 128b, 16b, ", "tiny, tiny-gpt2, tiny-moe, tiny-parallel")
    refused({ "no/such/file.yml" }, "no/such/file.yml")
    refused({ "steps=3", "file.yml" }, "'file.yml' on the command line: expected key=value")
end

function TestConfig.test_reading_an_unknown_key()
    local c = mx.config.load({})
    lu.assertErrorMsgContains("no config key 'stepz'", function()
        return c.stepz
    end)
end

-- A new file in configs/models is known at once: to messages, and to the table of kernels.
function TestConfig.test_models_are_those_of_the_folder()
    local names = mx.config.models()
    for i, name in ipairs(names) do
        lu.assertEquals(mx.config.load({ "model_name=" .. name }).model_name, name)
        lu.assertTrue(i == 1 or names[i - 1] < name)
    end
    lu.assertTrue(#names >= 10)
    lu.assertErrorMsgContains("no model 'tini'", mx.kernels.run, { "model=tini" })
    lu.assertErrorMsgContains("mib=0: expected 1 to 4096 MiB", mx.kernels.run, { "mib=0" })
    lu.assertErrorMsgContains("clock=sun: expected wall or processor", mx.kernels.run, { "clock=sun" })
    local threads = mx.threads()
    mx.threads(2)
    lu.assertErrorMsgContains("clock=processor: the time of one thread is counted, and 2 are in use", mx.kernels.run,
        { "clock=processor" })
    mx.threads(threads)
    lu.assertErrorMsgContains("model=deepseek2-16b: the products of latent attention are not listed here",
        mx.kernels.run, { "model=deepseek2-16b" })
end

function TestConfig.test_script_options()
    local c = mx.config.load({ "bench_seconds=5" }, { options = { bench_seconds = 60.0 } })
    lu.assertEquals(c.bench_seconds, 5.0)
    refused({ "bench_seconds=5" }, "unknown key 'bench_seconds'")
    local o = mx.config.options({ "only=matmul" }, { only = "", tokens = 2048 })
    lu.assertEquals({ o.only, o.tokens }, { "matmul", 2048 })
    lu.assertErrorMsgContains("did you mean 'tokens'", mx.config.options, { "token=3" }, { only = "", tokens = 2048 })
    lu.assertErrorMsgContains("unknown key 'hardware'; there are only, tokens", mx.config.options, { "hardware=v5e-8" },
        { only = "", tokens = 2048 })
    lu.assertErrorMsgContains("at least 1", mx.config.options, { "tokens=0" }, { tokens = 2048 })
    lu.assertEquals(mx.config.options({ "tokens=0" }, { tokens = 2048 }, {}).tokens, 0)
end

function TestConfig.test_dump_reads_back_the_same()
    local c = mx.config.load({ "model_name=128b", "run_name=a b: \"c\"", "steps=3" })
    with_file(mx.config.dump(c), function(path)
        local again = mx.config.load({ path })
        lu.assertEquals(mx.config.dump(again), mx.config.dump(c))
        lu.assertEquals(again.run_name, "a b: \"c\"")
    end)
    lu.assertStrContains(mx.config.dump(c, true), "steps: 3")
    lu.assertNotStrContains(mx.config.dump(c, true), "adam_b1")
end
