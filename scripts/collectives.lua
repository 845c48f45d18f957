-- The rate of every collective between the ranks, beside the MPI library's own call and this machine's copy bandwidth:
--
--     mpirun -n 2 build/mxlua scripts/collectives.lua [only=all_reduce] [largest_mib=256] [metrics_file=F]
--
-- only         collectives whose name contains this
-- largest_mib  the largest tensor, in MiB; sizes grow from 4 KiB by factors of four
-- metrics_file one JSON object per line, collective and size
--
-- lua/mx/bench/collectives.lua says what each column is.

require("mx").collectives.run(arg)
