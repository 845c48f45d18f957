--- How much slower the slowest chip of a pod is than the average one.
--
-- Chips of one kind differ in speed: their leakage, temperature and power differ, and so do their clocks. All chips
-- wait for the slowest at each collective, so a pod is slower the more chips it has. The time of the same arithmetic is
-- taken as normally distributed over the chips. The slowest of N chips then takes 1 + chip_spread * largest(N) times
-- the mean. Memory and links have clocks of their own: they have no spread here.

local stragglers = {}

local STEP, END = 0.01, 9 -- of the integral, in standard deviations; outside of -END to END there is nothing

--- The expected largest of n independent normal variables of mean 0 and standard deviation 1: the integral of x over
--- the change of F^n, where F is the normal distribution.
---@param n integer at least 1
---@return number 0 for one, 0.564 (1 / sqrt(pi)) for two, 2.82 for 256, 3.81 for 8192
function stragglers.largest(n)
    local sum, below, power = 0, 0, 0
    for i = math.floor(-END / STEP), math.floor(END / STEP) - 1 do
        local middle = (i + 0.5) * STEP
        below = below + STEP * math.exp(-middle ^ 2 / 2) / math.sqrt(2 * math.pi)
        local next_power = below ^ n
        sum, power = sum + middle * (next_power - power), next_power
    end
    return sum
end

--- The time of arithmetic on the slowest chip over the mean.
---@param hardware table with chip_spread
---@param chips integer of all slices
---@return number
function stragglers.slowdown(hardware, chips)
    return 1 + (hardware.chip_spread or 0) * stragglers.largest(chips)
end

return stragglers
