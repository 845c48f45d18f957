--- mx.linalg: systems of linear equations, inverses, determinants and factorizations of dense matrices, by LAPACK.

local core = require "mx.core"
local util = require "mx.util"

local linalg = {
    solve = core.linalg_solve, cholesky = core.linalg_cholesky, eigh = core.linalg_eigh, svd = core.linalg_svd,
    slogdet = core.linalg_slogdet,
}

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

--- The determinants of square matrices (..., n, n). That of a singular matrix is 0 and has no gradient.
---@param a mx.Tensor
---@return mx.Tensor det (...)
function linalg.det(a)
    local sign, log_size = core.linalg_slogdet(a)
    return sign * core.exp(log_size)
end

--- a = q r for matrices (..., m, n) and k = min(m, n): q (..., m, k) has orthonormal columns, r (..., k, n) is upper
--- triangular, with a diagonal that is not negative.
---@param a mx.Tensor
---@return mx.Tensor q
---@return mx.Tensor r
function linalg.qr(a)
    local sizes = a:size()
    local m, n = sizes[#sizes - 1], sizes[#sizes]
    if #sizes < 2 or m >= n then
        local q, r = core.linalg_qr(a) -- no tail call: messages name the caller's line
        return q, r
    end
    local first, rest = core.split(a, { sizes = { m, n - m }, dim = -1 })
    local q, r = core.linalg_qr(first)
    return q, core.concat(r, core.matmul(q, rest, { trans_a = true }), { dim = -1 })
end

return util.module(linalg, "mx.linalg")
