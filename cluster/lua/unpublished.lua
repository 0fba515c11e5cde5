-- Returns shard, its entry, shard, ...
local answer = {}
local names = redis.call('SMEMBERS', unpublished)
table.sort(names)
for _, name in ipairs(names) do
    table.insert(answer, name)
    table.insert(answer, redis.call('HGET', shards, name))
end
return answer
