-- Compares the published step time of Llama 2 7B on one node of eight H100 with the simulated one:
--
--     build/mxlua scripts/bench_llama2_7b.lua [metrics_file=F]
--
-- The simulation uses configs/hardware/h100.yml. Its constants are public, or fitted to another job.
-- configs/published/h100.yml holds the published row, and lua/mx/bench/published.lua explains the comparison.

require("mx.bench.published").run(arg)
