-- Finds threads, remat_policy and passes with which a config trains fastest on this machine, for later runs:
--
--     build/mxlua scripts/tune.lua model_name=tiny [key=value ...] [budget_s=60]
--     build/mxlua scripts/train.lua model_name=tiny [key=value ...] tuning=cache
--
-- budget_s  seconds that it may take; 0, the default: those of 120 steps, at least a minute
--
-- The other keys are those of configs/base.yml, as for train.lua. remat_policy and gradient_accumulation_steps stay as
-- they are if you give them. Nothing is trained or saved. Run it under the load and with the ranks (mpirun -n N) of the
-- later runs; --threads N is the most that is tried. lua/mx/tune/README.md says how a choice must prove itself.

require("mx.tune.step").run(arg)
