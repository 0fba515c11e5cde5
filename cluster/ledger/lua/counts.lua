-- ARGV: first task, task after the last. Returns how many are done, and how many have live leases
-- (if more than 500 leases have ended, the second number includes some ended ones).
-- Changes nothing, so that viewers may call it.
local first, stop = tonumber(ARGV[3]), tonumber(ARGV[4])
local num_done = 0
local position = first
while position < stop and position % 8 ~= 0 do
    num_done = num_done + redis.call('GETBIT', done, position)
    position = position + 1
end
local whole_bytes = math.floor((stop - position) / 8)
if whole_bytes > 0 then
    num_done = num_done + redis.call('BITCOUNT', done, position / 8, position / 8 + whole_bytes - 1)
    position = position + 8 * whole_bytes
end
while position < stop do
    num_done = num_done + redis.call('GETBIT', done, position)
    position = position + 1
end
local num_held = redis.call('ZCOUNT', held, first, '(' .. stop)
for _, task in ipairs(ended()) do
    local index = tonumber(task)
    if index >= first and index < stop then
        num_held = num_held - 1
    end
end
return { num_done, num_held }
