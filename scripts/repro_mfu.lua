-- The published MFU of the 16B to 128B models on TPU v5e, beside what the simulated pod makes of the same jobs:
--
--     build/mxlua scripts/repro_mfu.lua [refit=true] [era=b] [metrics_file=F] [report_file=F.html]
--
-- refit         fits the five constants anew (to the cells of 1 and 32 slices) instead of taking those of
--               configs/hardware/v5e.yml
-- era           b: the models that scripts of these names train today, instead of those that were measured
-- metrics_file  a JSON object for each cell, and one with mean_abs_error and max_abs_error of the predictions
-- report_file   a page with the table, charts of MFU and of where the step goes, and the constants
--
-- configs/published/v5e.yml has the figures, configs/hardware/v5e.yml the machine, lua/mx/sim/repro.lua the rest.

require("mx").repro.run(arg)
