-- Writes lua/reference.md and lua/from_pytorch.md after a change of lua/mx/help or of an operation's text:
--
--     build/mxlua scripts/reference.lua

require("mx.help.pages").write()
