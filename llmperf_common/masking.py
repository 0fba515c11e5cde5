"""Masking of passwords in URLs, and in a library's messages about a URL, before they are shown.

Decides what counts as a secret in a URL: user, password, query and fragment. The strict form is
``scheme://[user:password@]host[:port][/path][?query][#fragment]``. In any other URL the password
may stand anywhere (after a ``/`` or ``@`` that was not percent-encoded), so only the scheme is
shown. ``pathlib`` makes one slash of two where a URL is taken for a path, so that such a text with
a user and a password is a URL, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

MASK: Final = "***"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)", re.DOTALL)
_PARTS: Final = re.compile(r"([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9._\-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._\-]+)?\])(?::[0-9]{1,5})?"
)
_PATH: Final = re.compile(r"[^\s@;\\]*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._\-]*(?::[0-9]{1,5})?")
_URL_IN_TEXT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'`<>]*")
_URL_AS_PATH: Final = re.compile(
    r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]+):/(?!/)([^\s\"'`<>]*)"
)
"""A text that may be a URL in the form of a path. A drive (``C:/a:b@c``) has one letter."""
_USER_AND_PASSWORD: Final = re.compile(r"[^/:]*:(?!/)(?:(?!:/).)*@", re.DOTALL)
"""Start of such a URL of any scheme. No password may stand in ``dir:/x@y`` or ``dir:/x/y:z@w``. A
list of folders, such as ``/bin:/usr/bin:/opt/a@1``, is no URL."""
_WEB_SCHEMES: Final = frozenset({"ftp", "ftps", "http", "https", "redis", "rediss"})
"""Schemes that no folder is named after: a lone user and a query may be secret as well."""
_AFTER_URL: Final = ":,.;!?)"
"""Punctuation that may follow a URL in a sentence."""
_PLACEHOLDER: Final = re.compile(
    r"[a-z]+://(?:(?:\[?(?:USER)?:PASSWORD@\]?)?HOST:PORT(?:/0|\[/DB\])?|…(?:/[01](?:\?ssl_ca_certs=FILE)?)?)"
)
"""Placeholders in LLMPerf's own messages, such as ``redis://HOST:PORT/0``, which hold no secret."""
_HARMLESS: Final = frozenset(
    {
        "db", "decode_responses", "encoding", "health_check_interval", "max_connections", "protocol", "retry_on_timeout",
        "socket_connect_timeout", "socket_keepalive", "socket_timeout", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs",
        "ssl_certfile", "ssl_check_hostname", "ssl_ciphers", "ssl_keyfile", "ssl_min_version", "timeout", "virtual_host",
    }
)  # fmt: skip
"""Query options of a URL whose values are not secret and may appear in a message."""


def public_url(url: str) -> str:
    """Return a URL without its user, password, query and fragment.

    Of a malformed URL only the scheme is shown, because its password may stand anywhere. Other text
    is returned unchanged if it is a plain name or ``host:port``, and is masked otherwise.

    >>> public_url("redis://default:secret@head:6379/0")
    'redis://head:6379/0'
    >>> public_url("Redis://head:6379/0?password=pw"), public_url("redis://:se/cret@head:6379/0")
    ('Redis://head:6379/0', 'redis://***')
    >>> public_url("sqlite"), public_url(":secret@head:6379")
    ('sqlite', '***')
    """
    found = _URL.fullmatch(url)
    if found is None:
        return url if _PLAIN.fullmatch(url) else MASK
    scheme, rest = found.groups()
    parts = _PARTS.fullmatch(rest)
    assert parts is not None, "any text has this form"
    authority, path, query, fragment = parts.groups(default="")
    host = authority.rpartition("@")[2]
    is_strict = _HOST.fullmatch(host) and _PATH.fullmatch(path) and "@" not in unquote(path)
    if not is_strict or "@" in query + fragment:
        return f"{scheme}://{MASK}"
    return f"{scheme}://{host}{path}"


def holds_secret(url: str) -> bool:
    """Whether a URL has parts that ``public_url`` leaves out.

    >>> holds_secret("http://minio:9000"), holds_secret("http://minio:9000/?token=x")
    (False, True)
    """
    return "://" in url and public_url(url) != url


def secrets_of(url: str) -> frozenset[str]:
    """Return a URL's secrets, as written and decoded: password or lone user, query, fragment.

    If a URL does not have the strict form, all of its parts are secrets.

    >>> sorted(secrets_of("redis://user:se%20cret@head:6379/0?db=1&password=other"))
    ['other', 'se cret', 'se%20cret']
    """
    found = _URL.fullmatch(url)
    rest = found[2] if found else url
    if public_url(url).endswith(MASK):
        return _decoded(re.split(r"[/?#@&=:;]", rest))
    parts = _PARTS.fullmatch(rest)
    assert parts is not None, "any text has this form"
    authority, _, query, fragment = parts.groups(default="")
    user, colon, password = authority.rpartition("@")[0].partition(":")
    values = [password if colon else user, fragment[1:]]
    for option in re.split("[&;]", query[1:]):
        name, _, value = option.partition("=")
        if name not in _HARMLESS:
            values += [value or name]
    return _decoded(values)


def masked(text: str, *urls: str) -> str:
    """Return ``text`` with the secrets of ``urls`` masked and every URL in it made public.

    Args:
        text: a message, for example of a library's exception.
        urls: URLs whose secrets may appear in the text, because servers repeat what they receive.

    >>> masked("unknown command 'AUTH', with args beginning with: 'Secret'", "redis://:secret@head")
    "unknown command 'AUTH', with args beginning with: '***'"
    >>> masked("cannot reach http://user:pw@minio:9000/a: no route")
    'cannot reach http://minio:9000/a: no route'
    >>> masked("http:/user:pw@minio/a: no such file")
    'http:/minio/a: no such file'
    """
    text = without(text, *(one for url in urls for one in secrets_of(url)))
    text = _URL_IN_TEXT.sub(_public, text) if "://" in text else text
    return _URL_AS_PATH.sub(_public_path, text) if ":/" in text else text


def without(text: str, *secrets: str) -> str:
    r"""Return ``text`` with ``secrets`` masked, in any letter case and encoding.

    >>> without("SE%2fCRET and se\\u002fcret", "se/cret")
    '*** and ***'
    """
    for secret in sorted(filter(None, set(secrets)), key=len, reverse=True):
        text = _anyhow(secret).sub(MASK, text)
    return text


def masked_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON document with all of its strings passed through ``masked``."""
    return {key: _masked_value(value) for key, value in document.items()}


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return masked_values(value)
    if isinstance(value, list | tuple):
        return [_masked_value(one) for one in value]
    return value


def _public(found: re.Match[str]) -> str:
    url = found[0]
    end = url.rstrip(_AFTER_URL)
    if _PLACEHOLDER.fullmatch(end):
        return url
    return public_url(end) + url[len(end) :]


def _public_path(found: re.Match[str]) -> str:
    scheme, rest = found.groups()
    is_web = scheme.lower() in _WEB_SCHEMES and any(sign in rest for sign in "@?#")
    if not is_web and not _USER_AND_PASSWORD.match(rest):
        return found[0]
    end = rest.rstrip(_AFTER_URL)
    return public_url(f"{scheme}://{end}").replace("://", ":/", 1) + rest[len(end) :]


def _decoded(values: Iterable[str]) -> frozenset[str]:
    return frozenset(
        form for value in values if value for form in (value, unquote(value), unquote_plus(value))
    )


def _anyhow(secret: str) -> re.Pattern[str]:
    """Return a pattern for a secret: any case, plain, percent-encoded or escaped characters."""
    return re.compile("".join(map(_any_form, secret)), re.IGNORECASE)


def _any_form(character: str) -> str:
    forms = {
        re.escape(character),
        "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass")),
        re.escape(ascii(character)[1:-1]),
        re.escape(json.dumps(character)[1:-1]),
        rf"\\u{ord(character):04x}",
        rf"\\{re.escape(character)}",
    }
    if character == " ":
        forms.add(r"\+")
    return f"(?:{'|'.join(sorted(forms, key=len, reverse=True))})"
