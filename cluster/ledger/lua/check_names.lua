-- Returns those of the given shards that were never recorded, and stores the number of this check.
-- ARGV: who checks, number of this check, number of the earlier check that must be stored, shards.
-- Returns {'behind'} if the earlier check is not stored: the ledger was restored to an older state.
local field, number = 'checked:' .. ARGV[3], tonumber(ARGV[4])
local noted = whole(redis.call('HGET', meta, field) or '0', meta)
if noted < tonumber(ARGV[5]) then
    return { 'behind' }
end
if number > noted then
    redis.call('HSET', meta, field, number)
end
local answer = { 'checked' }
if #ARGV > 5 then
    local recorded = redis.call('HMGET', shards, unpack(ARGV, 6))
    for i = 1, #recorded do
        if not recorded[i] then
            table.insert(answer, ARGV[i + 5])
        end
    end
end
return answer
