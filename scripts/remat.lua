-- Peak memory and step time of a model under every remat_policy:
--
--     build/mxlua scripts/remat.lua [config.yml] model_name=gpt2-124m max_target_length=512 [key=value ...]
--     build/mxlua scripts/remat.lua model_name=tiny remat_policy=custom mlpwo=device context=offload
--
-- only          policies whose name contains this
-- repeats       timed steps of each policy, after one that is not; the fastest is shown
-- remat_policy  custom: a row of its own for what the keys query_proj, key_proj ... say
-- metrics_file  one JSON object per line and policy
--
-- The other keys are those of configs/base.yml. lua/mx/bench/policies.lua says what each column is.

require("mx").policies.run(arg)
