-- Begins every script. KEYS: the keys of one ledger of one epoch.
-- ARGV[1]: the epoch; ARGV[2]: added to the clock, us.
-- A ledger ends when its `meta` is gone, or when its server has restarted: a restarted server may
-- have lost the changes of its last second.
local meta, expiry, held, free, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local cursors, done, shards, unpublished, publisher = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local board = KEYS[11]
local known = redis.call('HMGET', meta, 'epoch', 'run_id')
if known[1] ~= ARGV[1] then
    return redis.error_reply('LEDGERLOST it was wiped, or a newer epoch has taken over')
end
if known[2] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
    return redis.error_reply('LEDGERLOST the server has been started anew')
end
-- These keys always exist: RedisLocation.create adds something permanent to each.
if redis.call('EXISTS', expiry, held, free, leases, done, shards, unpublished) < 7 then
    return redis.error_reply('LEDGERLOST the server has given up a part of it')
end
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2] + ARGV[2]

-- Other programs may have written to our keys. `whole` checks the values that a script calculates
-- with, except scores, which are always numbers. Another value ends the script.
local function foreign(key)
    error('FOREIGN value in ' .. key, 0)
end

-- Returns the whole number from 0 to 2^53 - 1 that a key's value stands for, if written as we do.
local function whole(value, key)
    local number = tonumber(value)
    local is_whole = number and number >= 0 and number < 2 ^ 53 -- false for "nan", too
    if not is_whole or string.format('%.0f', number) ~= value then
        foreign(key)
    end
    return number
end

-- Returns the longest TTL of a claim in us, or nil before the first claim.
local function longest_ttl_us()
    local longest = redis.call('HGET', meta, 'longest_ttl_us')
    return longest and whole(longest, meta)
end

-- Redis ends a script at a command that fails, and keeps its earlier changes. A command fails if our
-- user has lost the right to it, or if its key has another type. So before it changes anything, a
-- script that must not stop halfway runs its commands in a way that changes nothing, and returns the
-- first refusal. '-' is no task; '' is permanent.
local function refusal(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        -- Redis 6.2 puts the place in the script before the error's code word.
        return redis.error_reply((string.gsub(reply.err, '^@user_script: ?%d+: %-?', '')))
    end
end

-- Returns the refusal of the first command that fails, or nil. The first command also fails if the
-- server's memory is full.
local function rehearse()
    whole(redis.call('HGET', meta, 'last_token'), meta)
    return refusal('ZADD', expiry, 'XX', 0, '-')
        or refusal('ZADD', held, 'XX', 0, '-')
        or refusal('ZADD', free, 'XX', 0, '-')
        or refusal('ZADD', unpublished, 'XX', 0, '-')
        or refusal('ZREM', expiry, '-')
        or refusal('ZRANGEBYSCORE', free, 1, 0)
        or refusal('HSETNX', shards, '', '')
        or refusal('HSETNX', leases, '', '')
        or refusal('HDEL', leases, '-')
        or refusal('HEXISTS', leases, '-')
        or refusal('HSET', meta, 'epoch', ARGV[1])
        or refusal('HINCRBY', meta, 'last_token', 0)
        or refusal('HEXISTS', cursors, '-')
        or refusal('BITPOS', done, 0, 0, 0)
        or refusal('GETBIT', done, 0)
        or refusal('SETBIT', done, 0, redis.call('GETBIT', done, 0))
end

-- A lease is "token:attempt:holder". Its task is in `expiry` (by time) and `held` (by task); after
-- the lease has ended, the task is in `free` (by task).
local function token_of(task)
    local lease = redis.call('HGET', leases, task)
    return lease and string.match(lease, '^(%d+):')
end

local function hold(task, expires_us)
    redis.call('ZREM', free, task)
    redis.call('ZADD', expiry, expires_us, task)
    redis.call('ZADD', held, task, task)
end

local function let_go(task)
    redis.call('ZREM', expiry, task)
    redis.call('ZREM', held, task)
    redis.call('ZADD', free, task, task)
end

-- Returns tasks whose leases have ended: at most 500 leases that have expired, and at most 500 that
-- would end later than twice the longest TTL from now (protocol.LONGEST_STAY). So late an end means
-- that the server's clock was set back after the lease was granted. `claim` stores the longest TTL,
-- because workers may use different ones.
local function ended()
    local tasks = redis.call('ZRANGEBYSCORE', expiry, '-inf', now_us, 'LIMIT', 0, 500)
    local longest_us = longest_ttl_us()
    if longest_us then
        local after = string.format('(%.0f', now_us + 2 * longest_us)
        -- The permanent member has the score +inf; leave it out.
        for _, task in ipairs(redis.call('ZRANGEBYSCORE', expiry, after, '(+inf', 'LIMIT', 0, 500)) do
            table.insert(tasks, task)
        end
    end
    for _, task in ipairs(tasks) do
        whole(task, expiry)
    end
    return tasks
end

-- Frees leases that have ended, at most 1,000 in a call, so that no call takes long when all leases
-- of a cluster end together.
local function free_ended()
    for _, task in ipairs(ended()) do
        let_go(task)
    end
end
