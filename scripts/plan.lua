-- Predicts the memory and time of a training step on hardware that you do not have:
--
--     build/mxlua scripts/plan.lua [config.yml] model_name=llama2-7b hardware=v5e-64 [num_slices=2] [key=value ...]
--     build/mxlua scripts/plan.lua model_name=llama2-7b hardware=v5e-64 search=true [candidates=200] [top=10]
--
-- The first command prints the memory of a chip by purpose, whether it fits, and the simulated step. The second tries
-- meshes, rematerialisation policies and batch sizes, except those that you set, and prints the fastest that fit. Keys
-- are those of configs/base.yml; configs/hardware lists the hardware. lua/mx/sim/plan.lua explains the method.

require("mx").plan.run(arg)
