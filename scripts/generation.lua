-- Tokens a second and bytes of generation with weights in bfloat16, float32, int8 and Q8_0:
--
--     build/mxlua scripts/generation.lua [model_name=gpt2-124m] [tokens=32] [key=value ...]
--
-- tokens         to generate in each round
-- prompt_tokens  before them
-- rounds         of all kinds of weights in turn
--
-- The other keys are those of configs/base.yml. The weights are drawn, so no file is read.
-- lua/mx/bench/generation.lua explains the columns.

require("mx").generation.run(arg)
