-- Binds all tasks to the shards or, if one token is stale, none. Returns the stale tasks.
-- ARGV: name of the commit, number of leases, then task, token, ..., then shard, its entry, ...
local commit, num_leases = ARGV[3], tonumber(ARGV[4])
local first_shard = 5 + 2 * num_leases
local recorded = redis.call('HGET', shards, ARGV[first_shard])
if recorded then
    local is_json, entry = pcall(cjson.decode, recorded)
    if not is_json or type(entry) ~= 'table' then
        foreign(shards)
    end
    if entry.commit == commit then
        return {}
    end
end
local stale = {}
for i = 5, first_shard - 1, 2 do
    if token_of(ARGV[i]) ~= ARGV[i + 1] then
        table.insert(stale, tonumber(ARGV[i]))
    end
end
if #stale > 0 then
    return stale
end
local refused = rehearse()
if refused then
    return refused
end
for i = first_shard, #ARGV, 2 do
    if redis.call('HSETNX', shards, ARGV[i], ARGV[i + 1]) == 1 then
        redis.call('ZADD', unpublished, 0, ARGV[i])
    end
end
for i = 5, first_shard - 1, 2 do
    redis.call('SETBIT', done, ARGV[i], 1)
    redis.call('HDEL', leases, ARGV[i])
    redis.call('ZREM', expiry, ARGV[i])
    redis.call('ZREM', held, ARGV[i])
    redis.call('ZREM', free, ARGV[i])
end
return stale
