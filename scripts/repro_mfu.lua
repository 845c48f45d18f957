-- Compares the published MFU of the 16B to 128B models on TPU v5e with the simulated MFU of the same jobs:
--
--     build/mxlua scripts/repro_mfu.lua [refit=true] [era=b] [metrics_file=F] [report_file=F.html]
--
-- refit         fit the five constants again, to the cells of 1 and 32 slices, instead of using those of
--               configs/hardware/v5e.yml
-- era           b: simulate the models that MaxText's scripts of the same names train today, not those measured
-- metrics_file  file for a JSON object per cell, and one with mean_abs_error and max_abs_error of the predictions
-- report_file   HTML page with the table, charts of MFU and of time by operation, and the constants
--
-- configs/published/v5e.yml holds the published figures, configs/hardware/v5e.yml describes the hardware, and
-- lua/mx/sim/repro.lua explains the comparison.

require("mx").repro.run(arg)
