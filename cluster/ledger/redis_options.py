"""Check the options of a ledger's URL before the client library sees them.

Owns the list of options and the values that each may have. The library takes any of its internal
arguments from a URL (classes, callables), and raises all kinds of errors for wrong values.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

_LONGEST_TIMEOUT_S = 3600
_YES_OR_NO = ("true", "false", "yes", "no", "1", "0")


@dataclass(frozen=True, slots=True)
class _Option:
    """What an option may be, in words, and the check of it."""

    meaning: str
    accepts: Callable[[str], object]


def _matches(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).fullmatch


def _is_timeout(text: str) -> bool:
    is_number = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) is not None
    return is_number and 0 < float(text) <= _LONGEST_TIMEOUT_S


def _are_ciphers(text: str) -> bool:
    if re.fullmatch("[!-~]+", text) is None:
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(text)
    except ssl.SSLError:
        return False
    return True


_TEXT = _Option("a text", _matches(r"[^\0]+"))
_FILE = _Option("a path", _TEXT.accepts)
_NUMBER = _Option("a whole number of at most 6 digits", _matches("[0-9]{1,6}"))
_TIMEOUT = _Option(
    f"a number of seconds, more than 0 and at most {_LONGEST_TIMEOUT_S}", _is_timeout
)
_SWITCH = _Option("true or false", lambda text: text.lower() in _YES_OR_NO)

OPTIONS: Mapping[str, _Option] = MappingProxyType(
    {
        "db": _NUMBER,
        "username": _TEXT,
        "password": _TEXT,
        "client_name": _Option(
            "1 to 100 printable ASCII characters without spaces", _matches("[!-~]{1,100}")
        ),
        "protocol": _Option("2 or 3", _matches("[23]")),
        "max_connections": _Option("a whole number of 1 to 999999", _matches("[1-9][0-9]{0,5}")),
        "health_check_interval": _NUMBER,
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "socket_keepalive": _SWITCH,
        "retry_on_timeout": _SWITCH,
        "ssl_ca_certs": _FILE,
        "ssl_ca_path": _FILE,
        "ssl_certfile": _FILE,
        "ssl_keyfile": _FILE,
        "ssl_password": _TEXT,
        "ssl_cert_reqs": _Option("none, optional or required", _matches("none|optional|required")),
        "ssl_check_hostname": _SWITCH,
        "ssl_min_version": _Option("771 (TLS 1.2) or 772 (TLS 1.3)", _matches("77[12]")),
        "ssl_ciphers": _Option("a list of ciphers that this machine's OpenSSL has", _are_ciphers),
    }
)
"""The options that a ledger's URL may have."""

_OF_THE_CLIENT = frozenset(
    {
        "connection_class", "credential_provider", "decode_responses", "encoding",
        "encoding_errors", "host", "lib_name", "lib_version", "parser_class", "port",
        "redis_connect_func", "retry", "retry_on_error", "single_connection_client",
        "socket_keepalive_options", "socket_read_size", "socket_type", "ssl", "ssl_ca_data",
        "unix_socket_path",
    }
)  # fmt: skip
"""Other options of the client library, which a message may name."""


def option_problem(url: str) -> str | None:
    """Return what is wrong with the options of a URL, without their values; None if nothing is.

    An unknown name is left out, too: after a password with an unencoded ``&`` it is a part of it.

    >>> option_problem("redis://head:6379/0?socket_timeout=2")
    >>> option_problem("redis://head:6379/0?protocol=9")
    'protocol must be 2 or 3'
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "invalid URL: write redis://[USER:PASSWORD@]HOST:PORT[/DB]"
    for place, (name, value) in enumerate(options, start=1):
        option = OPTIONS.get(name)
        if option is None:
            return (
                f"{_named(name, f'{place} of {len(options)}')} is not supported: leave it out, or "
                f"name one of {', '.join(sorted(OPTIONS))}"
            )
        if name.startswith("ssl_") and parts.scheme != "rediss":
            return f"{name} needs rediss:// in place of {parts.scheme}://"
        if not option.accepts(value):
            return f"{name} must be {option.meaning}"
    return None


def _named(name: str, place: str) -> str:
    """Return an option's name; without the name if it may be a part of a password."""
    if name in _OF_THE_CLIENT:
        return f"the option {name}"
    return f"option {place} (not shown; in a password write %26 for &)"
