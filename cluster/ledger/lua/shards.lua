-- Returns every shard that was ever recorded: shard, its entry, shard, ...
-- Called only by a sweep, and where ledger and manifest differ.
local answer = {}
local recorded = redis.call('HGETALL', shards)
for i = 1, #recorded, 2 do
    if recorded[i] ~= '' then
        table.insert(answer, recorded[i])
        table.insert(answer, recorded[i + 1])
    end
end
return answer
