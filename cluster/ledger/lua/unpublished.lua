-- ARGV: a shard ('' to begin with), how many at most. Returns the shards after it in order of name: shard, its entry, shard, ...
local after = ARGV[3] == '' and '-' or '(' .. ARGV[3]
local answer = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', unpublished, after, '+', 'LIMIT', 0, ARGV[4])) do
    table.insert(answer, name)
    table.insert(answer, redis.call('HGET', shards, name))
end
return answer
