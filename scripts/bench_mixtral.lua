-- Compares published rates of models with experts, on 256 TPU v5p and v6e, with simulated ones:
--
--     build/mxlua scripts/bench_mixtral.lua [metrics_file=F]
--
-- configs/published/moe.yml has the published rows and their sources. Nothing is fitted to them.

require("mx.bench.mixtral").run(arg)
