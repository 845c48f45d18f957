-- Trains the same small model under every recipe of quantization and compares loss, rounding and speed with bf16:
--
--     build/mxlua scripts/precision.lua [recipes=int8,fp8_full] [steps=300] [chart=loss.svg] [key=value ...]
--
-- recipes      some of those of the key quantization; default: all
-- text         a file whose bytes are learnt; default: lua/reference.md
-- chart        an .svg or .html file for a chart of the losses
-- metrics_file file for one JSON object per line, for each recipe
--
-- The other keys are those of configs/base.yml; the model is tiny unless they name another that reads bytes
-- (vocab_size=256). lua/mx/bench/precision.lua explains the columns.

require("mx").precision.run(arg)
