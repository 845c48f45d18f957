-- Shows which parallelism suits a model on given hardware: for each mesh axis, the FLOPs per byte sent; for each
-- operation of a step, whether compute or memory bandwidth limits it.
--
--     build/mxlua scripts/roofline.lua model_name=llama3-8b hardware=v5p ranks=64 ici_tensor_parallelism=4
--
-- ranks        number of devices in the planned mesh (the script itself runs as one process); not needed if hardware
--              names the number of chips
-- hardware     a file of configs/hardware: v5e (the default), v5p, v6e, v7x, h100, h200 or b200; or slices of so many
--              chips: hardware=v5e-256 num_slices=2. A device of v7x is one of the two dies of a chip
-- peak_tflops  TFLOP/s of a device, instead of the hardware file's
-- link_gbps    GB/s (gigabytes) of a link inside a slice; dcn_gbps: the same to other slices
-- operations   number of operations to show against the memory bandwidth, starting with those that take longest at the
--              roofline. Default: 12. 0: none
--
-- Keys of the model and the mesh are those of configs/base.yml. lua/mx/sim/collectives.lua contains the formulas.

require("mx").roofline.run(arg)
