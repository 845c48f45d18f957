-- The published 16B job on TPU v5e, one chip's work for each rank:
--
--     mpirun -n 2 build/mxlua scripts/bench_16b.lua [bench_seconds=60] [era=b] [remat_policy=full] [metrics_file=F]
--         [ici_fsdp_parallelism=N] [ici_tensor_parallelism=N]
--
-- lua/mx/bench/init.lua says what is measured and what is cut.

require("mx").bench.run("16b", arg)
