-- Renews or releases leases. Returns the tasks that were still held.
-- ARGV: ttl us (negative: the lease ends now), then task, token, task, ...
local ttl_us = tonumber(ARGV[3])
-- The server looks at its memory only until a script's first change. This one takes no memory, so a
-- full server renews leases, too.
local refused = refusal('ZREM', expiry, '-') or rehearse()
if refused then
    return refused
end
local still_held = {}
for i = 4, #ARGV, 2 do
    if token_of(ARGV[i]) == ARGV[i + 1] then
        if ttl_us < 0 then
            let_go(ARGV[i])
        else
            hold(ARGV[i], now_us + ttl_us)
        end
        table.insert(still_held, tonumber(ARGV[i]))
    end
end
return still_held
