-- ARGV: names of shards.
return redis.call('ZREM', unpublished, unpack(ARGV, 3))
