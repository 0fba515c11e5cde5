-- ARGV: holder, ttl us. Returns 1 if the holder is now the publisher, else 0.
-- An election that would end later than twice its TTL from now counts as ended: its late end shows
-- that the clock was set back.
local current = redis.call('HMGET', publisher, 'holder', 'expires_us', 'ttl_us')
if current[1] and current[1] ~= ARGV[3] then
    local expires_us = whole(current[2], publisher)
    local ttl_us = whole(current[3] or ARGV[4], publisher)
    if expires_us > now_us and expires_us <= now_us + 2 * ttl_us then
        return 0
    end
end
local ends_us = string.format('%.0f', now_us + ARGV[4])
redis.call('HSET', publisher, 'holder', ARGV[3], 'expires_us', ends_us, 'ttl_us', ARGV[4])
return 1
