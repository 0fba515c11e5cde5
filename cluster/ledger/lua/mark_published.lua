-- ARGV: names of shards that a manifest lists.
return redis.call('ZREM', unpublished, unpack(ARGV, 3))
