-- Measures every kernel with the shapes of a model, as a share of this machine's measured peak:
--
--     build/mxlua scripts/kernels.lua [only=matmul] [model=32b] [tokens=2048] [mib=64] [clock=wall]
--         [metrics_file=F]
--
-- only         measure only kernels whose name contains this; bounds: ratios of rates, and the least that is asked
-- model        one of configs/models; default: llama2-7b. Of a published job, one chip's part
-- tokens       number of rows in the matrix products
-- mib          size of each tensor in MiB, but for products, attention and convolutions
-- clock        wall, or processor: processor time of the one thread that is used (--threads 1), for a machine on which
--              other programs run. Kernel and peak are measured in turn, and the best of each counts
-- metrics_file file for one JSON object per line, for each kernel
--
-- lua/mx/bench/kernels.lua explains the columns.

require("mx").kernels.run(arg)
