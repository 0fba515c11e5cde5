-- Returns the shards that were never recorded, and notes that this check has been made.
-- ARGV: who checks, number of the check, number of the check that must be noted, then shards.
-- Returns {'behind'} if that check is not noted: the ledger was restored to an earlier state.
local field, number = 'checked:' .. ARGV[3], tonumber(ARGV[4])
local noted = tonumber(redis.call('HGET', meta, field) or 0)
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
