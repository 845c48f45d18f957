-- Actor-critic on a 5 x 5 gridworld: from a corner to the other one, 0.02 off the reward for each step.
-- After training, the greedy policy must take the 8 steps that the shortest way has.
--
--     build/mxlua scripts/examples/actor_critic.lua [episodes=300]
local mx = require "mx"
local o = mx.config.options(arg, { episodes = 300 })
local SIDE, LONGEST, DISCOUNT = 5, 40, 0.95
local MOVES = { { 1, 0 }, { -1, 0 }, { 0, 1 }, { 0, -1 } }

local params = {}
local actor = mx.nn.embedding(params, "actor", SIDE * SIDE, #MOVES, { std = 0.01 }) -- logits for each cell
local critic = mx.nn.embedding(params, "critic", SIDE * SIDE, 1, { std = 0.01 }) -- value of each cell
local optimizer = mx.optim.adamw(params, { learning_rate = 5e-2 })

-- One episode; choose(cell) gives a move, from 0. Lists of cells, moves and rewards.
local function play(choose)
    local x, y, cells, moves, rewards = 0, 0, {}, {}, {}
    while #cells < LONGEST and (x < SIDE - 1 or y < SIDE - 1) do
        local cell = y * SIDE + x
        local move = choose(cell)
        x = math.max(0, math.min(SIDE - 1, x + MOVES[move + 1][1]))
        y = math.max(0, math.min(SIDE - 1, y + MOVES[move + 1][2]))
        cells[#cells + 1], moves[#moves + 1] = cell, move
        rewards[#rewards + 1] = (x == SIDE - 1 and y == SIDE - 1 and 1 or 0) - 0.02
    end
    return cells, moves, rewards
end

math.randomseed(1)
for _ = 1, o.episodes do
    local step <close> = mx.step()
    local policy = mx.no_grad(function() return mx.softmax(params["actor.weight"]):totable() end)
    local cells, moves, rewards = play(function(cell)
        local u, move = math.random(), 0
        while move < #MOVES - 1 and u > policy[cell + 1][move + 1] do
            u, move = u - policy[cell + 1][move + 1], move + 1
        end
        return move
    end)
    local returns, sum = {}, 0
    for i = #rewards, 1, -1 do
        sum = rewards[i] + DISCOUNT * sum
        returns[i] = { sum }
    end
    local at, chosen = mx.tensor(cells, "i32"), mx.tensor(moves, "i32"):view(#moves, 1)
    local advantage = mx.tensor(returns) - critic(at)
    local log_p = mx.log_softmax(actor(at))
    local chosen_log_p = mx.gather(log_p, chosen, { dim = 2 })
    local entropy = mx.sum(log_p * mx.exp(log_p)) * -1
    mx.backward(mx.sum(mx.square(advantage)) - mx.sum(chosen_log_p * advantage:detach()) - entropy * 0.01)
    optimizer:step()
end
local best = mx.argmax(params["actor.weight"], { dim = 2 }):totable()
local steps = #play(function(cell) return best[cell + 1] end)
print(("the greedy policy takes %d steps; the shortest way has %d"):format(steps, 2 * (SIDE - 1)))
assert(steps == 2 * (SIDE - 1), "the policy does not take the shortest way")
