-- Finds the number of threads with which a config trains fastest on this machine, and stores it for later runs:
--
--     build/mxlua scripts/tune.lua model_name=tiny [key=value ...] [budget_s=60]
--     build/mxlua scripts/train.lua model_name=tiny [key=value ...] tuning=cache
--
-- budget_s  seconds that it may take
--
-- The other keys are those of configs/base.yml, as for train.lua. Nothing is trained or saved. Run it under the load
-- and with the ranks (mpirun -n N) of the later runs; --threads N is the most that is tried. lua/mx/tune/README.md says
-- how a choice must prove itself.

require("mx.tune.step").run(arg)
