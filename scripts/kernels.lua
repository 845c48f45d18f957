-- The rate of every kernel over the shapes of the shipped models, as a share of this machine's measured peak:
--
--     build/mxlua scripts/kernels.lua [only=matmul] [model=32b] [tokens=2048] [metrics_file=F]
--
-- only         kernels whose name contains this
-- model        shapes of this model only: gpt2-124m, llama2-7b, llama3-8b, 16b, 32b or 128b (one chip's part)
-- tokens       rows of the matrix products
-- metrics_file one JSON object per line and kernel
--
-- lua/mx/bench/kernels.lua says what each column is.

require("mx").kernels.run(arg)
