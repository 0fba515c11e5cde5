-- ARGV: first task, task after the last. Looks at the 500 live leases that end first.
-- Returns their holders: holder, number of tasks, us until its last lease ends, holder, ...
-- Changes nothing.
local first, stop = tonumber(ARGV[3]), tonumber(ARGV[4])
local longest_us = longest_ttl_us()
local latest = longest_us and string.format('%.0f', now_us + 2 * longest_us) or '(+inf'
local after = string.format('(%.0f', now_us)
local found, names = {}, {}
local live = redis.call('ZRANGEBYSCORE', expiry, after, latest, 'WITHSCORES', 'LIMIT', 0, 500)
for i = 1, #live, 2 do
    local index, lease = whole(live[i], expiry), redis.call('HGET', leases, live[i])
    if index >= first and index < stop and lease then
        local name = string.match(lease, '^%d+:%d+:(.*)$') or foreign(leases)
        if not found[name] then
            found[name] = { 0, 0 }
            table.insert(names, name)
        end
        -- Tasks are sorted by the end of their leases, so a holder's last task has its last end.
        found[name] = { found[name][1] + 1, live[i + 1] - now_us }
    end
end
local answer = {}
for _, name in ipairs(names) do
    table.insert(answer, name)
    table.insert(answer, found[name][1])
    table.insert(answer, found[name][2])
end
return answer
