-- What a training step holds and takes on hardware that need not be there:
--
--     build/mxlua scripts/plan.lua [config.yml] model_name=llama2-7b hardware=v5e-64 [slices=2] [key=value ...]
--     build/mxlua scripts/plan.lua model_name=llama2-7b hardware=v5e-64 search=true [candidates=200] [top=10]
--
-- The first prints the memory of a chip by what it is for, whether it fits, and the simulated step; the second tries
-- meshes, rematerialisation policies and batches and prints the fastest that fit. Keys are those of configs/base.yml,
-- hardware those of configs/hardware. lua/mx/sim/plan.lua says how.

require("mx").plan.run(arg)
