-- The published step of Llama 2 7B on one node of eight H100, beside the one that the simulated node takes:
--
--     build/mxlua scripts/bench_llama2_7b.lua [metrics_file=F]
--
-- Vendors' figures alone (configs/hardware/h100.yml), nothing fitted, so the error is what these leave out.
-- configs/published/h100.yml has the row; lua/mx/bench/published.lua says what is compared.

require("mx.bench.published").run(arg)
