-- Runs the published 32B job of TPU v5e with one chip's work per rank, cut to fit this machine:
--
--     mpirun -n 2 build/mxlua scripts/bench_32b.lua [bench_seconds=60] [era=b] [remat_policy=full] [metrics_file=F]
--         [ici_fsdp_parallelism=N] [ici_tensor_parallelism=N]
--
-- lua/mx/bench/init.lua explains what is measured and what is cut.

require("mx").bench.run("32b", arg)
