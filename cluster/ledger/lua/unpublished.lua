-- ARGV: a shard ('' to begin with), how many at most.
-- Returns the unpublished shards after it, by name: shard, its entry, shard, ...
local answer = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', unpublished, '(' .. ARGV[3], '+', 'LIMIT', 0, ARGV[4])) do
    table.insert(answer, name)
    table.insert(answer, redis.call('HGET', shards, name) or foreign(shards))
end
return answer
