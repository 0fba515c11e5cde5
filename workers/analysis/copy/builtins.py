"""Stand-ins for built-in functions that compute an address or a length themselves.

``vloadN(i, p)`` reads N elements from ``p + i * N``; an async copy touches as many elements as its
argument says. The stand-in of such a function records the access, then makes it in the real buffer.
All other built-ins access only the object to which their pointer argument points, and need no
stand-in.
"""

from __future__ import annotations

import re

_VECTOR_ACCESS = re.compile(
    r"(?P<verb>vloada|vload|vstorea|vstore)(?P<half>_half)?(?P<lanes>2|3|4|8|16)?"
    r"(?P<mode>_rte|_rtz|_rtp|_rtn)?"
)
_COPIES = {"async_work_group_copy": 0, "async_work_group_strided_copy": 1}


def stand_in(name: str, function: str, pointers: tuple[str, ...], value_type: str) -> str | None:
    """Return the definition of the stand-in ``function`` for ``name``; None if none is needed.

    Args:
        name: the built-in's name.
        function: the stand-in's name; its first parameters are the context and the site.
        pointers: pointee types of the pointer arguments, in order.
        value_type: type of the stored value; only for stores.
    """
    if name in _COPIES:
        return _copy(name, function, pointers)
    match = _VECTOR_ACCESS.fullmatch(name)
    if match is None:
        return None
    scalar = "half" if match["half"] else _scalar(pointers[0])
    lanes = int(match["lanes"] or 1)
    stride = 4 if lanes == 3 and match["verb"].endswith("a") else lanes
    size = 2 if scalar == "half" else f"sizeof({scalar})"
    width = match["lanes"] or ""
    real = f"({pointers[0]} *)lp_touch(c, site, (ulong)p + i * {stride} * {size}, {lanes} * {size})"
    if match["verb"].startswith("vload"):
        result = ("float" if match["half"] else scalar) + width
        return (
            f"{result} {function}(lp_ctx *c, uint site, ulong i, {pointers[0]} *p)\n"
            f"{{ return {name}(0, {real}); }}\n"
        )
    return (
        f"void {function}(lp_ctx *c, uint site, {value_type} v, ulong i, {pointers[0]} *p)\n"
        f"{{ {name}(v, 0, {real}); }}\n"
    )


def _copy(name: str, function: str, pointers: tuple[str, ...]) -> str:
    to, source = pointers
    strided = _COPIES[name]
    stride = ", ulong stride" if strided else ""
    reach = "(n - 1) * stride + 1" if strided else "n"
    spans = ("n", "n")
    if strided:
        is_read = "__global" in source
        spans = ("n", reach) if is_read else (reach, "n")
    return (
        f"event_t {function}(lp_ctx *c, uint site, {to} *d, {source} *s, "
        f"ulong n{stride}, event_t e)\n"
        "{\n"
        "    if (n == 0)\n"
        "        return e;\n"
        "    ulong z = sizeof(*s);\n"
        f"    ulong dd = lp_span(c, site, (ulong)d, ({spans[0]}) * z);\n"
        f"    ulong ss = lp_span(c, site, (ulong)s, ({spans[1]}) * z);\n"
        "    ulong m = min(lp_room(c, (ulong)d, n * z), lp_room(c, (ulong)s, n * z)) / z;\n"
        # A plain copy moves the same number of elements and stays inside the real buffers.
        f"    return async_work_group_copy(({to} *)dd, ({source} *)ss, m, e);\n"
        "}\n"
    )


def _scalar(pointee: str) -> str:
    words = [
        word
        for word in pointee.split()
        if word not in {"const", "volatile", "restrict"} and not word.startswith("__")
    ]
    return " ".join(words)
