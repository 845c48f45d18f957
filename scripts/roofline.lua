-- Which parallelism pays for a model on some hardware: FLOPs for each byte that travels, axis by axis; and
-- what bounds each operation of a step.
--
--     build/mxlua scripts/roofline.lua model_name=llama3-8b hardware=v5p ranks=64 ici_tensor_parallelism=4
--
-- ranks        devices of the planned mesh (this itself runs as one process); not needed where hardware says it
-- hardware     a file of configs/hardware: v5e (when not given), v5p, v6e, v7x or h100; or slices of so many chips, as
--              in hardware=v5e-256 slices=2. A device of v7x is one of the two dies of a chip
-- peak_tflops  TFLOP/s of a device, link_gbps GB/s (gigabytes) of a link inside a slice and dcn_gbps to other slices,
--              in place of the hardware's
-- operations   how many of a step's operations to show against the memory's bandwidth, those first that take longest at
--              the roofline: 12 when not given, 0 for none
--
-- The model's keys and those of the mesh are those of configs/base.yml. lua/mx/sim/roofline.lua has the formulas.

require("mx").roofline.run(arg)
