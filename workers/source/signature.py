"""Return what a source says about its kernels: arguments, access, dimensions, static features.

Owns the decision which arguments can be filled, and so which kernels are ``unsupported``. Needs
libclang but no device; the tests compare the result with ``clGetKernelArgInfo``. A source with
parse errors (often from macros that its host program defines) still gives signatures if the
parameters can be read, because only the device's compiler decides whether the kernel builds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import (
    MAX_ELEMENT_BYTES,
    Access,
    Argument,
    ArgumentKind,
    Signature,
)
from workers.source.builtin_groups import NDRANGE_CALLS
from workers.source.clang.access import AccessAnalysis
from workers.source.clang.nodes import (
    Function,
    NodeKind,
    Parameter,
    ParsedSource,
    Space,
    TypeClass,
    TypeFacts,
    reachable,
    walk,
)
from workers.source.size_roles import size_roles
from workers.source.static_features import static_features

MAX_DIMS = 3
MAX_ARGUMENTS = 1024
"""Maximum arguments of a kernel. Devices take 1 to 4 KiB of arguments, and the analyses of more
arguments would take time that grows with the square of their number."""
_BUFFER_KINDS = {
    Space.GLOBAL: ArgumentKind.GLOBAL_BUFFER,
    Space.CONSTANT: ArgumentKind.CONSTANT_BUFFER,
    Space.LOCAL: ArgumentKind.LOCAL_BUFFER,
}
_VALUE_KINDS = {
    TypeClass.SCALAR: ArgumentKind.SCALAR,
    TypeClass.VECTOR: ArgumentKind.SCALAR,
    TypeClass.IMAGE: ArgumentKind.IMAGE,
    TypeClass.SAMPLER: ArgumentKind.SAMPLER,
    TypeClass.PIPE: ArgumentKind.PIPE,
    TypeClass.RECORD: ArgumentKind.STRUCT,
}
_FILLABLE = frozenset(
    {
        ArgumentKind.GLOBAL_BUFFER,
        ArgumentKind.CONSTANT_BUFFER,
        ArgumentKind.LOCAL_BUFFER,
        ArgumentKind.SCALAR,
    }
)
_QUALIFIERS = re.compile(
    r"\b(?:__global|__constant|__local|__private|__generic|global|constant|local|private|const"
    r"|volatile|restrict|__restrict|__read_only|__write_only|__read_write|read_only|write_only"
    r"|read_write)\b"
)
_UNSIGNED = {
    "unsigned char": "uchar",
    "unsigned short": "ushort",
    "unsigned int": "uint",
    "unsigned long": "ulong",
    "unsigned": "uint",
    "signed char": "char",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSignature:
    """One kernel of a source: its signature if it can be read, and why it cannot be launched.

    Both are set if the arguments can be read but LLMPerf cannot fill one of them, such as an image.
    """

    name: str
    signature: Signature | None = None
    failure: Failure | None = None


def signatures_of(parsed: ParsedSource, source: str) -> tuple[NamedSignature, ...]:
    """Return the signature of every kernel of a parsed file, in order of definition.

    Raises:
        RecursionError: An expression is nested too deeply to be walked.

    >>> from workers.source.clang.parse import parse
    >>> text = "__kernel void f(__global float *a) { a[get_global_id(0)] = 1; }"
    >>> signatures_of(parse(text), text)[0].name
    'f'
    """
    return tuple(signature_of(parsed, source, one) for one in parsed.kernels)


def signature_of(parsed: ParsedSource, source: str, kernel: Function) -> NamedSignature:
    """Return the signature of one kernel of a parsed file, or why it is unsupported.

    Raises:
        RecursionError: An expression is nested too deeply to be walked.
    """
    num_arguments = len(kernel.parameters)
    if num_arguments > MAX_ARGUMENTS:
        detail = f"it has {num_arguments} arguments, more than {MAX_ARGUMENTS}"
        return NamedSignature(
            name=kernel.name,
            failure=Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail=detail),
        )
    accesses = AccessAnalysis(parsed).accesses(kernel)
    roles = size_roles(parsed, kernel)
    arguments = tuple(
        replace(_argument(position, parameter, access), size_role=role)
        for position, (parameter, access, role) in enumerate(
            zip(kernel.parameters, accesses, roles, strict=True)
        )
    )
    functions = reachable(parsed, kernel)
    required = kernel.required_local_size
    dims = max(_dims_asked_for(functions), _dims_required(required))
    features = static_features(parsed, source.encode(), kernel, functions, arguments, dims)
    refused = [one for one in arguments if one.kind not in _FILLABLE]
    failure = None
    if refused:
        failure = Failure(
            code=FailureCode.UNSUPPORTED,
            stage=Stage.SIGNATURE,
            detail="\n".join(_refusal(one) for one in refused),
        )
    return NamedSignature(
        name=kernel.name,
        signature=Signature(
            arguments=arguments,
            dims=dims,
            required_local_size=required,
            static_local_bytes=int(features["static_local_bytes"]),
            static_features=features,
        ),
        failure=failure,
    )


def _dims_asked_for(functions: tuple[Function, ...]) -> int:
    highest = 0
    for function in functions:
        for node in walk(function.body):
            if node.kind is NodeKind.CALL and node.name in NDRANGE_CALLS and node.children:
                dimension = node.children[0].value
                if dimension is not None and highest < dimension < MAX_DIMS:
                    highest = dimension
    return highest + 1


def _dims_required(required: tuple[int, ...] | None) -> int:
    shape = required or ()
    used = [index + 1 for index, length in enumerate(shape) if length > 1]
    return max(used, default=1)


def _argument(position: int, parameter: Parameter, access: Access) -> Argument:
    kind = parameter.type
    is_pointer = kind.shape is TypeClass.POINTER
    element = kind.pointee if is_pointer and kind.pointee is not None else kind
    argument_kind = _pointer_kind(element) if is_pointer else _VALUE_KINDS.get(kind.shape)
    no_size = argument_kind is ArgumentKind.SCALAR and element.size_bytes < 1
    is_too_large = element.size_bytes > MAX_ELEMENT_BYTES
    if is_too_large or (not is_pointer and (kind.scalar == "bool" or no_size)):
        argument_kind = ArgumentKind.OTHER
    return Argument(
        position=position,
        name=parameter.name or f"argument_{position}",
        kind=argument_kind or ArgumentKind.OTHER,
        type_name=type_name(kind),
        scalar_type=element.scalar,
        vector_width=max(1, min(element.num_scalars, MAX_ELEMENT_BYTES)),
        element_bytes=min(element.size_bytes, MAX_ELEMENT_BYTES),
        access=access if is_pointer else Access.READ,
        is_const=element.is_const,
        leaves=element.leaves if is_pointer and not is_too_large else (),
    )


def _pointer_kind(element: TypeFacts) -> ArgumentKind:
    if element.shape in {TypeClass.RECORD, TypeClass.ARRAY}:
        fillable = element.leaves or (element.scalar and not element.has_pointer_leaf)
        if not fillable or element.size_bytes <= 0:
            return ArgumentKind.STRUCT
    elif element.shape not in {TypeClass.SCALAR, TypeClass.VECTOR} or element.size_bytes < 1:
        return ArgumentKind.OTHER  # an enumeration without enumerators has size 0, too
    return _BUFFER_KINDS.get(element.space, ArgumentKind.OTHER)


def type_name(kind: TypeFacts) -> str:
    """Return the name that ``clGetKernelArgInfo`` gives a type: typedefs kept, qualifiers dropped.

    A pointer's name is its pointee's name and ``*``; ``unsigned int`` becomes ``uint``.
    """
    if kind.shape is TypeClass.POINTER and kind.pointee is not None:
        return type_name(kind.pointee) + "*"
    words = " ".join(_QUALIFIERS.sub(" ", kind.spelling).split())
    return _UNSIGNED.get(words, words)


def _refusal(argument: Argument) -> str:
    reasons = {
        ArgumentKind.IMAGE: "is an image",
        ArgumentKind.SAMPLER: "is a sampler",
        ArgumentKind.PIPE: "is a pipe",
        ArgumentKind.STRUCT: (
            "is a structure that is passed by value, or has pointers, overlapping or packed members"
        ),
    }
    reason = reasons.get(argument.kind, "has a type that neither a buffer nor a number can replace")
    return (
        f"argument {argument.position} ({argument.name!r}) of type {argument.type_name!r} {reason}"
    )
