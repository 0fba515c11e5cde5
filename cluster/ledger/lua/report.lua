-- Stores a worker's report. The first report of a worker also removes old reports of others, and
-- what is not a report.
-- ARGV: worker, its document, how long a silent worker is kept, us.
if redis.call('HSET', board, ARGV[3], string.format('%.0f %s', now_us, ARGV[4])) == 1 then
    local told = redis.call('HGETALL', board)
    for i = 1, #told, 2 do
        if tonumber(string.match(told[i + 1], '^%d+ ') or 0) < now_us - ARGV[5] then
            redis.call('HDEL', board, told[i])
        end
    end
end
return 0
