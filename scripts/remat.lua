-- Measures peak memory and step time of a model under every remat_policy:
--
--     build/mxlua scripts/remat.lua [config.yml] model_name=gpt2-124m max_target_length=512 [key=value ...]
--     build/mxlua scripts/remat.lua model_name=tiny remat_policy=custom mlpwo=device context=offload
--
-- only          measure only policies whose name contains this
-- repeats       timed steps per policy, after one step of warm-up; the fastest is shown
-- remat_policy  custom adds a row for the actions given by the keys query_proj, key_proj ...
-- metrics_file  file for one JSON object per line, for each policy
--
-- The other keys are those of configs/base.yml. lua/mx/bench/policies.lua explains the columns.

require("mx").policies.run(arg)
