"""The declarations that copies get in place of ``opencl-c.h``: the same as in that header."""

from __future__ import annotations

import importlib.util
import io
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pcpp import Preprocessor

from workers.analysis.copy.device_macros import (
    KNOWN_IN_CONDITIONS,
    PREDEFINED,
    may_be_a_devices,
)
from workers.device.opencl.builtin_declarations import declarations

OTHER_FUNCTIONS = {
    "async_work_group_copy", "async_work_group_strided_copy", "prefetch", "shuffle", "shuffle2",
    "upsample", "wait_group_events",
}  # fmt: skip
"""Functions of the header that are not declared: a copy that calls one is built with the header."""
DEFINED = (
    "__OPENCL_C_VERSION__ 120", "__OPENCL_VERSION__ 120", "CL_VERSION_1_0 100",
    "CL_VERSION_1_1 110", "CL_VERSION_1_2 120", "CL_VERSION_2_0 200", "CL_VERSION_3_0 300", "cl_khr_fp64 1", "cl_khr_int64_base_atomics 1",
    "cl_khr_int64_extended_atomics 1", "cl_khr_global_int32_base_atomics 1",
    "cl_khr_global_int32_extended_atomics 1", "cl_khr_local_int32_base_atomics 1",
    "cl_khr_local_int32_extended_atomics 1", "__opencl_c_named_address_space_builtins 1",
)  # fmt: skip
OF_OTHER_STANDARDS = re.compile(
    r"(?:read|write|get)_image|get_image|intel_|atomic_.*(?:explicit|init|fence|load|store|flag)"
)
"""Functions of images, of extensions and of OpenCL C 2.0."""
DECLARATION = re.compile(r"(.*?)\b(\w+) ?\((.*)\)$")
ATTRIBUTE = re.compile(r"__attribute__\(\((.*?)\)\)")
NAMED = re.compile(r"(.*[ *])(?!int$|uint$)\w+$")


def header() -> Path:
    """Return the header of the PoCL that pip installs, or skip the test."""
    found = importlib.util.find_spec("pocl_binary_distribution")
    if found is None or found.origin is None:
        pytest.skip("the package pocl_binary_distribution is not installed")
    path = Path(found.origin).parent / ".libs" / "share" / "pocl" / "include" / "opencl-c.h"
    if not path.is_file():
        pytest.skip(f"this PoCL has no {path}")
    return path


class OneFile(Preprocessor):  # type: ignore[misc]
    def on_file_open(self, _is_system_include: bool, include_path: str) -> Any:
        return io.StringIO("")

    def on_comment(self, _token: Any) -> bool:
        return False


def plain_type(text: str) -> str:
    text = text.replace("unsigned int", "uint").replace("unsigned long", "ulong")
    return re.sub(r" ?\* ?", "*", " ".join(text.split()))


def parameter(text: str) -> str:
    text = plain_type(text)
    named = NAMED.fullmatch(text)
    is_type = named is None or re.fullmatch(r"(?:const|volatile|__\w+| )*", named[1])
    return text if is_type or named is None else plain_type(named[1])


def read(text: str) -> dict[str, set[tuple[object, ...]]]:
    """Return by name: attributes, result and parameter types of each overload."""
    found: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for statement in text.split(";"):
        words = " ".join(re.sub(r"(?m)^#.*$", "", statement).split())
        if "overloadable" not in words:
            continue
        attributes = {one for all_of in ATTRIBUTE.findall(words) for one in all_of.split(", ")} - {
            "overloadable"
        }
        match = DECLARATION.fullmatch(" ".join(ATTRIBUTE.sub(" ", words).split()))
        assert match is not None, words
        parameters = tuple(parameter(one) for one in match[3].split(","))
        found[match[2]].add((frozenset(attributes), plain_type(match[1]), parameters))
    return found


def test_overloads_are_those_of_the_compilers_header() -> None:
    path = header()
    preprocessor = OneFile()
    for macro in DEFINED:
        preprocessor.define(macro)
    preprocessor.parse(path.read_text(encoding="utf-8"), "opencl-c.h")
    text = io.StringIO()
    preprocessor.write(text)
    theirs = read(text.getvalue())
    assert len(theirs) > 700
    unknown = []
    for name, overloads in theirs.items():
        ours = read(declarations(f"{name}(1)"))
        if not ours:
            unknown.append(name)
            continue
        assert ours == {name: overloads}, name
    others = {one for one in unknown if not OF_OTHER_STANDARDS.match(one)}
    assert others == OTHER_FUNCTIONS


def test_macros_of_its_headers_are_known_to_be_a_devices() -> None:
    names = {
        name
        for path in header().parent.glob("*.h")
        for name in re.findall(r"(?m)^\s*#\s*define\s+(\w+)", path.read_text(encoding="utf-8"))
    }
    usual = {one.split()[0] for one in PREDEFINED} | set(KNOWN_IN_CONDITIONS)
    # Kernels do not include the header of the first two; a device without doubles, for which
    # LLMPerf refuses them, has the third. User code chooses such names, as in `#ifndef ALIGN4`.
    usual |= {"ALIGN4", "ALIGN8", "double"}
    assert len(names) > 1000
    assert {one for one in names - usual if not may_be_a_devices(one)} == set()


def test_only_what_is_called_is_declared() -> None:
    text = declarations("float f(float a) { return native_sin(a) + sqrt (a) + own(cos); }")
    assert set(read(text)) == {"native_sin", "sqrt"}
    assert text.count("\n") == 1


def test_nothing_is_declared_for_unknown_names() -> None:
    assert declarations("void f() { convert_tone(1); vload5(0, p); half_sine(1); }") == "\n"
