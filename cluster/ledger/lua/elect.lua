-- ARGV: holder, ttl us. Returns 1 if the holder is now the publisher, else 0.
local current = redis.call('HMGET', publisher, 'holder', 'expires_us')
if current[1] and current[1] ~= ARGV[3] and tonumber(current[2]) > now_us then
    return 0
end
redis.call('HSET', publisher, 'holder', ARGV[3], 'expires_us', string.format('%.0f', now_us + ARGV[4]))
return 1
