"""The rights that a ledger needs on a Redis server, and a rehearsal that finds those that a user lacks.

A script that meets a command which its user may not run ends there, with what it has done before. So a collector asks for all of
them before it writes anything. Owns the list; ``redis_connection.py`` sends it.
"""

from __future__ import annotations

_KEY = "llmperf:rights"
_NUM_ARGUMENTS = {
    "set": 1, "get": 0, "del": 0, "unlink": 0, "exists": 0, "smembers": 0, "sadd": 1, "srem": 1,
    "hget": 1, "hmget": 1, "hgetall": 0, "hset": 2, "hsetnx": 2, "hdel": 1, "hexists": 1, "hincrby": 2,
    "zadd": 2, "zrem": 1, "zcount": 2, "zrangebyscore": 2, "zrangebylex": 2,
    "getbit": 1, "setbit": 2, "bitcount": 0, "bitpos": 1,
}  # fmt: skip
"""What the scripts and ``RedisLocation`` call with a key, and how many arguments each wants besides."""
_KEYLESS = {
    "info": ("INFO", "server"),
    "time": ("TIME",),
    "evalsha": ("EVALSHA", "0" * 40, "0"),
    "script|load": ("SCRIPT", "LOAD", "return 0"),
}

RIGHTS = " ".join(("~llmperf:*", "+select", *(f"+{one}" for one in (*_KEYLESS, *_NUM_ARGUMENTS))))
"""What a user of the server must be allowed to do, as ``ACL SETUSER`` takes it."""


def rehearsal() -> list[tuple[str, tuple[str, ...]]]:
    """Return each right and a command that needs it.

    The server looks at a user's rights first. What it says then does not matter: most commands find a key of another type, none
    leaves anything behind.

    >>> dict(rehearsal())["hset"]
    ('HSET', 'llmperf:rights', '0', '0')
    """
    keyed = [(name, (name.upper(), _KEY, *["0"] * num)) for name, num in _NUM_ARGUMENTS.items()]
    return [*_KEYLESS.items(), *keyed, ("del", ("DEL", _KEY))]
