-- Begins every script. KEYS: what one ledger of one epoch consists of; ARGV[1]: the epoch, ARGV[2]: added to the clock, us.
-- A ledger ends with its `meta`, and with the server that it was made on: a restarted server may have forgotten the last second.
local meta, expiry, leases, cursors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local done, shards, unpublished, publisher, board = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local known = redis.call('HMGET', meta, 'epoch', 'run_id')
if known[1] ~= ARGV[1] then
    return redis.error_reply('LEDGERLOST it was wiped, or a newer epoch has taken over')
end
if known[2] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
    return redis.error_reply('LEDGERLOST the server has been started anew')
end
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2] + ARGV[2]

-- A lease is "token:attempt:holder".
local function token_of(task)
    local lease = redis.call('HGET', leases, task)
    return lease and string.match(lease, '^(%d+):')
end
