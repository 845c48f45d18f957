-- Draws pipeline schedules: a row for each stage, time from left to right. One process.
--
--     build/mxlua scripts/pipeline.lua stages=4 microbatches=8
--     build/mxlua scripts/pipeline.lua stages=4 microbatches=8 repeats=2 1f1b
--     build/mxlua scripts/pipeline.lua stages=4 microbatches=8 outside=last zb_h1
--
-- stages, microbatches   default: 4, 8
-- repeats                chunks of layers of each stage; default: 1. More make gpipe circular, 1f1b and zb_h1
--                        interleaved
-- outside                first or last: one more chunk of layers outside the pipeline, which all stages share out
-- gpipe, 1f1b, zb_h1, zb the schedules to draw; default: all
--
-- lua/mx/pipeline/README.md explains them.

print(require("mx").pipeline.report(arg))
