-- ARGV: names of shards.
for i = 3, #ARGV do
    redis.call('SREM', unpublished, ARGV[i])
end
return 0
