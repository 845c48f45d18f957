-- Compares published training speeds with the simulated ones of the same jobs:
--
--     build/mxlua scripts/repro_mfu.lua [generation=v5e|v5p|v6e|h100|v7x|all] [write=true] [metrics_file=F]
--     build/mxlua scripts/repro_mfu.lua [refit=true] [era=b] [metrics_file=F] [report_file=F.html]
--
-- generation    error of each published row; of fitted rows when each in turn is left out of the fit; of a null model,
--               which is the vendor's figures and one factor; and where the time of a step goes. Without it: the MFU
--               table of the 16B to 128B models on TPU v5e
-- write         with generation=all: write configs/published/errors.yml, from which labels and ranges are made
-- refit         fit the constants of the generation again, to the same rows, instead of using those of
--               configs/hardware. The constants are printed
-- era           b: simulate the models that MaxText's scripts of the same names train today, not those measured
-- metrics_file  file for a JSON object per row, and one with the mean errors
-- report_file   HTML page with the table, charts of MFU and of time by operation, and the constants
--
-- configs/published holds the published figures, configs/hardware describes the hardware. lua/mx/sim/generations.lua
-- and lua/mx/sim/repro.lua explain the comparisons.

require("mx").repro.run(arg)
