-- Leases tasks: first those whose lease has ended, then tasks never leased, in plan order.
-- ARGV: first task, task after the last, limit, ttl us, holder.
-- Returns task, token, attempt, task, ...
local first, stop, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local expires_us, holder = now_us + ARGV[6], ARGV[7]
local position = whole(redis.call('HGET', cursors, first) or ARGV[3], cursors)
if position < first or position > stop then
    foreign(cursors)
end

local refused = rehearse()
if refused then
    return refused
end
if (longest_ttl_us() or 0) < tonumber(ARGV[6]) then
    redis.call('HSET', meta, 'longest_ttl_us', ARGV[6])
end
free_ended()
local found = {}
for _, task in ipairs(redis.call('ZRANGEBYSCORE', free, first, '(' .. stop, 'LIMIT', 0, limit)) do
    if whole(task, free) < first or whole(task, free) >= stop then
        foreign(free)
    end
    table.insert(found, tonumber(task))
end

-- Returns the first task from `position` on that is not done; BITPOS skips sequences of done tasks.
local function not_done(position)
    while position % 8 ~= 0 do
        if redis.call('GETBIT', done, position) == 0 then
            return position
        end
        position = position + 1
    end
    -- BITPOS gives -1 beyond the string's end, and 0 where there is no string yet.
    return math.max(position, redis.call('BITPOS', done, 0, position / 8))
end

while #found < limit and position < stop do
    position = not_done(position)
    if position < stop then
        if redis.call('HEXISTS', leases, position) == 0 then
            table.insert(found, position)
        end
        position = position + 1
    end
end
local attempts = {}
for i, task in ipairs(found) do
    local before = redis.call('HGET', leases, task)
    attempts[i] = before and whole(string.match(before, '^%d+:(%d+):'), leases) + 1 or 1
end

redis.call('HSET', cursors, first, math.min(position, stop))
local answer = {}
for i, task in ipairs(found) do
    local token = redis.call('HINCRBY', meta, 'last_token', 1)
    redis.call('HSET', leases, task, string.format('%d:%d:%s', token, attempts[i], holder))
    hold(task, expires_us)
    table.insert(answer, task)
    table.insert(answer, token)
    table.insert(answer, attempts[i])
end
return answer
