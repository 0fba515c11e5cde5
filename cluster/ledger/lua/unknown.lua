-- ARGV: names of shards. Returns those that were never recorded.
local recorded = redis.call('HMGET', shards, unpack(ARGV, 3))
local answer = {}
for i = 1, #recorded do
    if not recorded[i] then
        table.insert(answer, ARGV[i + 2])
    end
end
return answer
