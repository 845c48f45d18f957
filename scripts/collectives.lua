-- Measures every collective between the ranks and compares it with the MPI library and the machine's copy bandwidth:
--
--     mpirun -n 2 build/mxlua scripts/collectives.lua [only=all_reduce] [largest_mib=256] [metrics_file=F]
--
-- only         measure only collectives whose name contains this
-- largest_mib  size of the largest tensor in MiB; sizes grow from 4 KiB by factors of four
-- metrics_file file for one JSON object per line, for each collective and size
--
-- lua/mx/bench/collectives.lua explains the columns.

require("mx").collectives.run(arg)
