-- Renews and releases. ARGV: ttl us (negative: the lease ends now), then task, token, task, ... Returns the tasks still held.
local ttl_us = tonumber(ARGV[3])
local expires_us = ttl_us < 0 and -1 or now_us + ttl_us
local held = {}
for i = 4, #ARGV, 2 do
    if token_of(ARGV[i]) == ARGV[i + 1] then
        redis.call('ZADD', expiry, expires_us, ARGV[i])
        table.insert(held, tonumber(ARGV[i]))
    end
end
return held
