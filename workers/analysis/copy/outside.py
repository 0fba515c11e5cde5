"""Refuse code with which a copy of a kernel could misuse the process that runs it.

The copies of untrusted kernels run on a CPU device, and its runtime may link them with all
libraries of its process. So a copy may call built-in functions of OpenCL C and functions that its
own text defines, and nothing else: no function of the C library, no variable of another library,
and no function that runs when the copy is loaded. Owns the lists of what is harmless. All else is
refused, because each compiler knows other extensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from clang import cindex

from workers.analysis.copy.cursors import CALL, VARIABLE
from workers.analysis.copy.rewriter import UnresolvedError

_ATTRIBUTES = frozenset(
    {
        "aligned", "always_inline", "bankwidth", "complete", "const", "convergent", "cyclic",
        "doublepump", "endian", "ext_vector_type", "format", "intel_reqd_sub_group_size",
        "max_constant_size", "max_global_work_dim", "max_work_group_size", "may_alias", "memory",
        "noduplicate", "noinline", "nosvm", "nothrow", "num_compute_units", "num_simd_work_items",
        "numbanks", "opencl_unroll_hint", "overloadable", "packed", "pure", "register",
        "reqd_work_group_size", "required_work_group_size", "task", "unused", "vec_type_hint",
        "visibility", "warn_unused_result", "work_group_size_hint", "xcl_array_partition",
        "xcl_dataflow", "xcl_pipeline_loop", "xcl_pipeline_workitems",
    }
)  # fmt: skip
"""Harmless attributes: they neither define a name for other libraries, nor make a function run by
itself."""
_BUILTINS = re.compile(
    r"__builtin_(?:astype|bswap(?:16|32|64)|c[lt]z(?:l|ll|s)?|clrsb(?:l|ll)?|constant_p"
    r"|convertvector|expect|ffs(?:l|ll)?|huge_vall?f?|inff?|is(?:finite|inf|nan|normal)"
    r"|nan[fs]?|parity(?:l|ll)?|popcount(?:l|ll)?|reduce_\w+|shufflevector|signbit[fl]?"
    r"|elementwise_\w+|rotate(?:left|right)(?:8|16|32|64)|unreachable)"
    r"|__sync_\w+"
)
"""Harmless functions of a compiler: those that only compute with their arguments, and ``__sync_``
functions, whose memory accesses the copy watches like those of other functions."""
_BUILTIN = re.compile(
    r"\b__(?:builtin|atomic|c11_atomic|opencl_atomic|hip_atomic|scoped_atomic)_\w+"
)
"""Matches the names of a compiler's functions. libclang does not show the atomic functions as
calls, so a copy could not keep their addresses within the buffers."""
_PRAGMA = re.compile(
    r"(?:OPENCL\s+(?:FP_CONTRACT|SELECT_ROUNDING_MODE|EXTENSION\s+(?!__)\w+)|STDC\s+FP_CONTRACT"
    r"|clang\s+fp\b)[\w\s:,()+-]*"
)
"""Pragmas that stay in the text. Those that unroll loops are removed: they change no result, and
libclang hides the loop behind them."""
_LINE = re.compile(r'#line \d+ "[^"\\\n]*"')
_LITERAL = re.compile(r"""(?<!\w)(?:"(?:\\[^\n]|[^"\\\n])*"|'(?:\\[^\n]|[^'\\\n])*')""")
_AMBIGUOUS = re.compile(r"""["'\\#`@$]|%:|/[/*]|[^\w\t\n\v\f -~]""")
"""Matches signs that comments, literals, directives or continued lines may begin with. Macros can
put such signs together, and a compiler would then read a new comment, literal or directive."""
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_OURS = re.compile(r"\b(?:_Pragma\b|(?:lp|LP)_\w*)")
"""Matches ``_Pragma``, and names that begin like the hooks' names: a function ``lp_touch`` in the
text would take the place of the hook that keeps addresses within the buffers."""
_ATTRIBUTE = re.compile(r"\b__attribute(?:__)?\b")
_OTHER_FORMS = re.compile(r"\b(?:__declspec|__pragma)\b|(?:\[|<:)\s*(?:\[|<:)")
"""Matches other forms of attributes: ``__declspec(...)`` and ``[[...]]``, also with digraphs."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_LANES = re.compile(r"[xyzw]{1,4}|[rgba]{1,4}|[sS][0-9a-fA-F]{1,16}|lo|hi|even|odd")
CONTEXT_MEMBERS = frozenset(
    {
        "base", "epoch", "group", "in", "is_cut", "item", "kept", "lane", "last", "mask", "met",
        "most_turns", "number", "out", "row", "rows", "seen", "set", "sets", "spare", "table",
        "touched", "trace", "turns", "unit", "watched",
    }
)  # fmt: skip
"""Members of the hooks' structure ``lp_ctx``; the text that is inserted into copies names them."""
_OWN_PREFIX = "lp_src_"
_KINDS = frozenset(
    {
        *(VARIABLE, 10, 6, 7, 20, 47, 48),  # declarations; names of members and labels
        *range(100, 105), *range(106, 108), *range(109, 120), 121, 130, 136,  # expressions
        *range(200, 211), 212, 213, 214, 230, 231,  # statements
    }
)  # fmt: skip
"""libclang's numbers for code that the copies follow. Not among them are blocks (105), the address
of a label and jumps to such an address (120, 211), assembly (215) and code of other languages."""


def plain_text(text: str) -> str:
    r"""Return an expanded text; of its pragmas, only those known to be harmless stay.

    A compiler can read the result in one way only: it has no comments, no directives but ``#line``
    and known pragmas, no continued lines and no trigraphs.

    Raises:
        UnresolvedError: The text has such things, because macros have put them together.

    >>> plain_text("#pragma weak system\n#pragma STDC FP_CONTRACT ON\nint x;")
    '\n#pragma STDC FP_CONTRACT ON\nint x;'
    """
    if _TRIGRAPH.search(text):
        raise UnresolvedError("a trigraph")
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        words = line.strip()
        if words.startswith("#pragma"):
            lines.append(words if _PRAGMA.fullmatch(words[len("#pragma") :].strip()) else "")
            continue
        found = None if _LINE.fullmatch(words) else _AMBIGUOUS.search(_LITERAL.sub(" 0 ", line))
        if found is not None:
            raise UnresolvedError(f"{found[0]!r} is left when its macros are expanded")
        lines.append(line)
    plain = "\n".join(lines)
    reserved = _OURS.search(_LITERAL.sub(" 0 ", plain))
    if reserved is not None:
        raise UnresolvedError(f"the name {reserved[0][:60]}, which LLMPerf reserves in such copies")
    return plain


def refuse_extensions(text: str) -> None:
    """Raise UnresolvedError for an attribute or ``__builtin_`` function not known to be harmless.

    >>> refuse_extensions("__attribute__((constructor)) void f();")
    Traceback (most recent call last):
    ...
    workers.analysis.copy.rewriter.UnresolvedError: the attribute constructor
    """
    if _OTHER_FORMS.search(text):
        raise UnresolvedError("an attribute in another form than __attribute__")
    for found in _BUILTIN.finditer(text):
        if not _BUILTINS.fullmatch(found[0]):
            raise UnresolvedError(f"{found[0][:60]}, which is not part of OpenCL C")
    for found in _ATTRIBUTE.finditer(text):
        for name in _names(text, found.end()):
            plain = name.removeprefix("__").removesuffix("__")
            if plain not in _ATTRIBUTES:
                raise UnresolvedError(f"the attribute {plain[:60]}")


def _names(text: str, at: int) -> Iterable[str]:
    """Yield the names of the attributes in ``((a, b(1)))``, which begins at ``at``."""
    depth = 0
    while at < len(text):
        letter = text[at]
        word = _WORD.match(text, at)
        if word is not None:
            if depth < 2:
                break
            if depth == 2:
                yield word[0]
            at = word.end()
            continue
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and not letter.isspace():
            return
        at += 1
    raise UnresolvedError("an attribute without parentheses")


def refuse_outside(cursor: Any, line: int, defined: frozenset[str]) -> None:
    """Raise UnresolvedError for code that may call another library or jump to any address.

    Args:
        cursor: an expression, statement or declaration of a variable.
        line: its line in the file.
        defined: names of the functions that have a body in the file.
    """
    kind = cursor._kind_id
    if kind not in _KINDS:
        raise UnresolvedError(f"line {line}: {cursor.kind.name.lower()}, which is not followed")
    if kind == VARIABLE:
        is_extern = cursor.storage_class == cindex.StorageClass.EXTERN
        if is_extern and cursor.get_definition() is None:
            raise UnresolvedError(f"line {line}: the variable {cursor.spelling} is not defined")
    if kind != CALL:
        return
    name = cursor.spelling
    called = cursor.referenced
    if called is not None and called._kind_id != cindex.CursorKind.FUNCTION_DECL.value:
        raise UnresolvedError(f"line {line}: a call through a pointer")
    if name in defined:
        if called is None or called.get_definition() is None:
            raise UnresolvedError(f"line {line}: a call of {name}, which has no body")
    elif name.startswith("__") and not _BUILTINS.fullmatch(name):
        raise UnresolvedError(f"line {line}: a call of {name}, which is not part of OpenCL C")


def renaming(names: Iterable[str]) -> str:
    r"""Return macros that give functions and variables of a copy names of their own.

    Then no name is that of another library, even if a compiler does not use the copy's definition.
    Names of vector lanes, attributes and members of ``lp_ctx`` stay, because no library defines
    them.

    >>> renaming(["read", "xy", "packed"])
    '#define read lp_src_read\n'
    """
    return "".join(
        f"#define {name} {_OWN_PREFIX}{name}\n"
        for name in names
        if not _LANES.fullmatch(name) and name not in _ATTRIBUTES | CONTEXT_MEMBERS
    )
