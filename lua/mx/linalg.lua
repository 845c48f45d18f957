--- mx.linalg: systems of linear equations, inverses, Cholesky factors and eigenvectors of dense matrices,
--- by LAPACK.

local core = require "mx.core"
local util = require "mx.util"

local linalg = { solve = core.linalg_solve, cholesky = core.linalg_cholesky, eigh = core.linalg_eigh }

--- The inverse of square matrices (..., n, n).
---@param a mx.Tensor
---@return mx.Tensor
function linalg.inv(a)
    local sizes = a:size()
    local n = sizes[#sizes]
    if #sizes < 2 or sizes[#sizes - 1] ~= n then
        error(("linalg.inv: expected square matrices (..., n, n), got a tensor of size %s"):format(
            table.concat(sizes, "x")), 2)
    end
    local one = core.one_hot(core.arange(n, "i32"), { classes = n, dtype = a:dtype() })
    local x = core.linalg_solve(a, core.expand(one, sizes)) -- no tail call: messages name the caller's line
    return x
end

return util.module(linalg, "mx.linalg")
