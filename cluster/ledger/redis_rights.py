"""The rights that a ledger needs on a Redis server, and a rehearsal that finds the missing ones.

If a script contains a command that its user may not run, the script ends there, and its earlier
changes stay. So a collector tests all rights before it writes anything. Owns the list of rights;
``redis_connection.py`` sends the commands.
"""

from __future__ import annotations

_KEY = "llmperf:rights"
_NUM_ARGUMENTS = {
    "set": 1, "get": 0, "del": 0, "unlink": 0, "exists": 0, "smembers": 0, "sadd": 1, "srem": 1,
    "hget": 1, "hmget": 1, "hgetall": 0, "hset": 2, "hsetnx": 2, "hdel": 1, "hexists": 1,
    "hincrby": 2,
    "zadd": 2, "zrem": 1, "zcount": 2, "zrangebyscore": 2, "zrangebylex": 2,
    "getbit": 1, "setbit": 2, "bitcount": 0, "bitpos": 1,
}  # fmt: skip
"""The commands that the scripts and ``RedisLocation`` use with a key, each with its arguments after
the key."""
_KEYLESS = {
    "info": ("INFO", "server"),
    "time": ("TIME",),
    "evalsha": ("EVALSHA", "0" * 40, "0"),
    "script|load": ("SCRIPT", "LOAD", "return 0"),
}

RIGHTS = " ".join(("~llmperf:*", "+select", *(f"+{one}" for one in (*_KEYLESS, *_NUM_ARGUMENTS))))
"""The rights that a user of the server must have, in the syntax of ``ACL SETUSER``."""


def rehearsal() -> list[tuple[str, tuple[str, ...]]]:
    """Return each right with a command that needs it.

    The server checks a user's rights before it runs a command, so only that part of its answer
    counts. Most commands name a key of another type and fail. No command leaves anything behind.

    >>> dict(rehearsal())["hset"]
    ('HSET', 'llmperf:rights', '0', '0')
    """
    keyed = [(name, (name.upper(), _KEY, *["0"] * num)) for name, num in _NUM_ARGUMENTS.items()]
    return [*_KEYLESS.items(), *keyed, ("del", ("DEL", _KEY))]
