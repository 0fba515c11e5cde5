-- ARGV: how long a silent worker is kept, us. Returns worker, age in us, document, worker, ...
-- Leaves out what is not a report: reports are only shown, so a foreign one harms no other.
local answer = {}
local told = redis.call('HGETALL', board)
for i = 1, #told, 2 do
    local at_us, document = string.match(told[i + 1], '^(%d+) (.*)$')
    local age_us = now_us - (at_us or 0)
    -- A report from the future was written before the clock was set back. Skip it: a live worker
    -- will soon write the next one.
    if age_us <= tonumber(ARGV[3]) and age_us >= -1000000 then
        table.insert(answer, told[i])
        table.insert(answer, math.max(0, age_us))
        table.insert(answer, document)
    end
end
return answer
