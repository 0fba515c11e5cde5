-- Returns every shard that was ever recorded: shard, its entry, shard, ... Asked only where ledger and manifest differ, and by a sweep.
return redis.call('HGETALL', shards)
