"""Convert declared arguments to rows of ``kernels.args``, and back.

Together with the configs of ``samples`` these rows say what each buffer held.
``workers/plan/inputs.py`` says how a buffer is filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmperf_common.records import Access, Argument, ArgumentKind, Leaf, SizeRole


def argument_rows(arguments: Iterable[Argument]) -> list[dict[str, Any]]:
    """Return a row of ``kernels.args`` for each argument."""
    return [
        {
            "position": one.position,
            "name": one.name,
            "kind": one.kind.value,
            "type_name": one.type_name,
            "scalar_type": one.scalar_type,
            "vector_width": one.vector_width,
            "element_bytes": one.element_bytes,
            "access": one.access.value,
            "is_const": one.is_const,
            "size_role": one.size_role.value,
            "leaves": [
                {
                    "offset_bytes": leaf.offset_bytes,
                    "scalar_type": leaf.scalar_type,
                    "count": leaf.count,
                }
                for leaf in one.leaves
            ],
        }
        for one in arguments
    ]


def arguments_from_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[Argument, ...] | None:
    """Return the arguments in ``kernels.args``; None for incomplete rows (schema version below 6).

    Raises:
        ValueError: A row was not written by LLMPerf.
    """
    found = []
    for row in rows:
        if row.get("leaves") is None:
            return None
        found.append(
            Argument(
                position=row["position"],
                name=row["name"],
                kind=ArgumentKind(row["kind"]),
                type_name=row["type_name"],
                scalar_type=row["scalar_type"],
                vector_width=row["vector_width"],
                element_bytes=row["element_bytes"],
                access=Access(row["access"]),
                is_const=row["is_const"],
                size_role=SizeRole(row["size_role"]),
                leaves=tuple(Leaf(**leaf) for leaf in row["leaves"]),
            )
        )
    return tuple(found)
