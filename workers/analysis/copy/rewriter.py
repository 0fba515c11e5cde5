"""Rewrite accesses, pointers, indices and variables as calls of hooks.

A hook is a function of ``hooks.cl`` that records an access. A tag is the number that stands for a
pointer in the copy: it names a buffer and an offset (``tags.cl``). Owns the calls of hooks in the
preprocessed text, and the numbers of accesses and variables. Uses libclang. Only inserts text, so
the author's code stays. ``walk.py`` finds the accesses in a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from workers.analysis.copy.cursors import holds_addresses, only_string, text_range
from workers.analysis.copy.edits import Edits
from workers.device.interface import Site
from workers.source.clang.nodes import Space, TypeClass, TypeFacts
from workers.source.clang.types import TypeReader

CONTEXT = "lp_c"
GLOBAL_BYTES, CONSTANT_BYTES, LOCAL_BYTES = 2**18, 2**13, 2**10
"""Bytes of each pointer argument in a probe, powers of two. Accesses beyond them are folded back to
lower addresses."""
WIDEST_PLAIN_BYTES = 128
"""Bytes of the widest scalar or vector, ``double16``."""
_ROOM = {Space.GLOBAL: GLOBAL_BYTES, Space.CONSTANT: CONSTANT_BYTES, Space.LOCAL: LOCAL_BYTES}
_LARGEST_ACCESS = 2**14
"""Largest access, in bytes, of a kernel that gets a copy. Each work-item has spare memory for the
largest access, which pointers without a target use."""
_OBJECTS = frozenset({TypeClass.SCALAR, TypeClass.VECTOR, TypeClass.RECORD, TypeClass.POINTER})
_UNTOLD = re.compile(r"[(\[]")
"""Matches type names after which ``*`` is not valid, such as a pointer to an array."""


class UnresolvedError(Exception):
    """Some code cannot be instrumented; the message says which code and in which line."""


class Sites:
    """The accesses, variables and stand-ins of one instrumented file, numbered in order.

    ``variables``: the numbers of variables whose address is taken and of strings, by the offset of
    the declaration or the string. ``strings``: the numbers of strings, which outlive a function.
    ``has_arrays``: an array of fixed size is indexed. ``has_uncut_loops``: a loop contains a
    barrier. ``widest_bytes``: bytes of the widest access.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.stand_ins: dict[tuple[Any, ...], str] = {}
        self.definitions: list[str] = []
        self.variables: dict[int, int] = {}
        self.strings: set[int] = set()
        self.has_arrays = False
        self.has_uncut_loops = False
        self.widest_bytes = WIDEST_PLAIN_BYTES

    def add(self, line: int, text: str) -> int:
        """Return the number of a new access, counted from 1; 0 in a record means no access."""
        self.sites.append(Site(line=line, text=" ".join(text.split())[:80]))
        return len(self.sites)


class Rewriter:
    """Records the edits of one file.

    Args:
        edits: the edits of the file's text.
        sites: the file's accesses.
        types: reads the translation unit's types.
        line_of: returns a cursor's line in the original file.
    """

    def __init__(
        self, *, edits: Edits, sites: Sites, types: TypeReader, line_of: Callable[[Any], int]
    ) -> None:
        self.edits = edits
        self.sites = sites
        self._types = types
        self._line_of = line_of

    def type(self, cursor: Any) -> TypeFacts:
        """Return the type of an expression."""
        return self._types.read(cursor.type)

    def result_type(self, function: Any) -> str:
        """Return the text of a function's result type."""
        return opencl_name(self._types.read(function.result_type))

    def text(self, cursor: Any) -> str:
        """Return the unedited text of a cursor."""
        start, end = text_range(cursor)
        return self.edits.raw[start:end].decode()

    def unresolved(self, cursor: Any, what: str) -> UnresolvedError:
        """Return the exception for ``what``, with the cursor's line."""
        return UnresolvedError(f"line {self._line_of(cursor)}: {what}")

    def site(self, cursor: Any) -> int:
        """Return a new number for the access at a cursor."""
        return self.sites.add(self._line_of(cursor), self.text(cursor))

    def place(self, cursor: Any) -> None:
        """Wrap an object that is read or written through a pointer in the call of a hook."""
        kind = self.type(cursor)
        if not self._is_hooked(cursor, kind):
            return
        text = self.text(cursor)
        name = opencl_name(kind)
        spelling = f"__typeof__({text})" if _UNTOLD.search(name) else name
        self._hook(cursor, kind, spelling, f"(*({spelling} *)", "&", f"sizeof({spelling})")

    def pointer(self, cursor: Any, pointee: TypeFacts) -> None:
        """Wrap a pointer argument through which the called function accesses memory."""
        if not self._is_hooked(cursor, pointee):
            return
        name = opencl_name(pointee)
        spelling = f"__typeof__(*({self.text(cursor)}))" if _UNTOLD.search(name) else name
        size = "1" if pointee.shape is TypeClass.VOID else f"sizeof({spelling})"
        self._hook(cursor, pointee, spelling, f"(({spelling} *)", "", size)

    def _hook(
        self, cursor: Any, kind: TypeFacts, spelling: str, cast: str, address_of: str, size: str
    ) -> None:
        start, end = text_range(cursor)
        # No argument points to private memory, so no record has the site of such an access.
        hook = "lp_private" if kind.space is Space.PRIVATE else "lp_touch"
        site = "" if kind.space is Space.PRIVATE else f" {self.site(cursor)},"
        before = f"{cast}{hook}({CONTEXT},{site} (ulong){address_of}("
        self.edits.wrap(start, end, before, f"), {size}))")

    def _is_hooked(self, cursor: Any, kind: TypeFacts) -> bool:
        if kind.space not in _ROOM and kind.shape not in {*_OBJECTS, TypeClass.VOID}:
            raise self.unresolved(cursor, f"an access to {kind.spelling!r} through a pointer")
        if kind.space is Space.GENERIC:
            raise self.unresolved(cursor, "a pointer into the generic address space")
        if kind.size_bytes > min(_ROOM.get(kind.space, _LARGEST_ACCESS), _LARGEST_ACCESS):
            raise self.unresolved(cursor, f"an access of {kind.size_bytes} bytes")
        self.sites.widest_bytes = max(self.sites.widest_bytes, kind.size_bytes)
        return True

    def index(self, cursor: Any, length: int) -> None:
        """Limit an index into an array variable to the array."""
        start, end = text_range(cursor)
        self.sites.has_arrays = True
        self.edits.wrap(start, end, f"lp_clip({CONTEXT}, (ulong)(", f"), {length}ul)")

    def variable(self, cursor: Any) -> None:
        """Register a variable where its address is taken, and use its tag.

        Then ``&x``, an array that decays, and all pointers derived from these are tags.
        """
        kind = self.type(cursor)
        declared = cursor.referenced
        element, is_array = kind, False
        while element.shape is TypeClass.ARRAY and element.pointee is not None:
            element, is_array = element.pointee, True
        if declared is None or element.shape not in _OBJECTS:
            return
        if element.shape is TypeClass.RECORD or is_array:
            self.sites.has_arrays = True
        self._name(cursor, declared.location.offset, self.text(cursor))

    def string(self, cursor: Any, string: Any) -> None:
        """Replace ``cursor``, a string or a pointer to the string, by the string's tag."""
        at = text_range(string)[0]
        self._name(cursor, at, self.text(string))
        self.sites.strings.add(self.sites.variables[at])

    def constant(self, cursor: Any, *, is_address: bool) -> None:
        """Refuse a constant table of pointers, because its initialiser has addresses, not tags.

        A constant pointer to a string becomes the tag of the string where its value is used.
        """
        kind = self.type(cursor)
        declared = cursor.referenced
        if kind.space is not Space.CONSTANT or not kind.has_pointer_leaf or declared is None:
            return
        string = only_string(declared) if kind.shape is TypeClass.POINTER else None
        if string is not None and not is_address:
            self.string(cursor, string)
        elif holds_addresses(declared):
            raise self.unresolved(cursor, "constant pointers into arrays")

    def _name(self, cursor: Any, declared_at: int, name: str) -> None:
        number = self.sites.variables.setdefault(declared_at, len(self.sites.variables))
        start, end = text_range(cursor)
        self.edits.replace(
            start,
            end,
            f"(*(__typeof__({name}) *)lp_named({CONTEXT}, {number}, (ulong)&{name}, "
            f"sizeof({name})))",
        )


def opencl_name(kind: TypeFacts) -> str:
    """Return a type with its qualifiers; scalars and vectors get OpenCL's own names.

    Their spelling may be ``float __attribute__((ext_vector_type(4)))``, the type of a sum.
    """
    is_plain = kind.shape in {TypeClass.SCALAR, TypeClass.VECTOR} and "atomic" not in kind.spelling
    if not is_plain or not kind.scalar:
        return kind.spelling
    words = [word for word in kind.spelling.split() if word in {"const", "volatile"}]
    if kind.space is not Space.PRIVATE:
        words.append(f"__{kind.space.value}")
    lanes = str(kind.num_scalars) if kind.shape is TypeClass.VECTOR else ""
    return " ".join([*words, kind.scalar + lanes])
