-- Prints what keys of MaxText mean here, and updates the tables of configs/coming_from_maxtext.md:
--
--     build/mxlua scripts/words.lua key=remat      # all keys with "remat" in their names
--     build/mxlua scripts/words.lua write=true     # after a change of configs/maxtext.yml
--
-- configs/maxtext.yml is the table; lua/mx/config/maxtext.lua applies it.

require("mx").words.run(arg)
