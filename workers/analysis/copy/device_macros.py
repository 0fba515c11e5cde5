"""The macros that OpenCL compilers define by themselves, and which of them vary between devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from clang import cindex

from workers.analysis.copy.conditions import Number
from workers.device.opencl.builtin_declarations import is_declared

PREDEFINED = (
    "__OPENCL_VERSION__ 120",
    "__OPENCL_C_VERSION__ 120",
    "__OPENCL__ 1",
    "CL_VERSION_1_0 100",
    "CL_VERSION_1_1 110",
    "CL_VERSION_1_2 120",
    "__ENDIAN_LITTLE__ 1",
    "cl_khr_fp64 1",
    "cl_khr_byte_addressable_store 1",
    "cl_khr_global_int32_base_atomics 1",
    "cl_khr_global_int32_extended_atomics 1",
    "cl_khr_local_int32_base_atomics 1",
    "cl_khr_local_int32_extended_atomics 1",
    "cl_khr_int64_base_atomics 1",
    "cl_khr_int64_extended_atomics 1",
)
"""Macros of an OpenCL C 1.2 device with doubles. They are expanded in the text. Other devices are
assumed to have the same extensions. Otherwise a kernel for doubles below ``#ifdef cl_khr_fp64``
would take the counts from all other kernels of its file."""

VALUES: Mapping[str, tuple[int | None, ...]] = {
    "__OPENCL_VERSION__": (120, 200, 210, 220, 300),
    "__OPENCL_C_VERSION__": (120, 100, 110, 200, 300),
    "CL_VERSION_2_0": (None, 200),
    "CL_VERSION_2_1": (None, 210),
    "CL_VERSION_2_2": (None, 220),
    "CL_VERSION_3_0": (None, 300),
}
"""All values of those macros whose values are known for each device; None: not defined. The first
value is that of this device. ``-cl-std`` gives the C version, also of an older standard."""
DEVICE_MACRO = re.compile(
    r"\b(?:__OPENCL_\w+|CL_VERSION_\w+|__opencl_c_\w+|__IMAGE_SUPPORT__|__GPU__|__CPU__"
    r"|__FAST_\w+|__FINITE_MATH_ONLY__|FP_FAST_\w+|HALF_(?:MAX|MIN|EPSILON|DIG|MANT_DIG|RADIX)\w*"
    r"|__has_\w+|__clang\w*|__llvm__|__GNUC\w*|__STDC_HOSTED__|__SPIR\w*|__NV\w+|__CUDA\w*"
    r"|__(?:AMD|amd|gfx|GFX|tune_|riscv_|ARM_|R600|INTEL|POCL|APPLE|ANDROID|linux|x86_64|i386|aarch64|arm|SSE|AVX)\w*"
    r"|__LP64__|_LP64|__SIZEOF_POINTER__|__SIZE_MAX__|__LONG_LONG_MAX__|_WIN32|_WIN64|POCL_\w+"
    r"|cl_(?:khr|nv|intel|amd|arm|apple|APPLE|ext|qcom|img|pocl)_\w+"
    r"|_+OPENCL_\w*|_+POCL_?\w*|_KERNEL_\w*|CL_DEVICE_\w+|_MSC_VER|__EMBEDDED_PROFILE__"
    r"|__FLT_EVAL_METHOD__|__FILE_NAME__|__is_(?:identifier|target_\w+)|__building_module)"
)
"""Macros that only some devices define, or define with other values."""

_NO_INTEGERS = """
    M_E M_LOG2E M_LOG10E M_LN2 M_LN10 M_PI M_PI_2 M_PI_4 M_1_PI M_2_PI M_2_SQRTPI M_SQRT2 M_SQRT1_2
    M_E_F M_LOG2E_F M_LOG10E_F M_LN2_F M_LN10_F M_PI_F M_PI_2_F M_PI_4_F M_1_PI_F M_2_PI_F
    M_2_SQRTPI_F M_SQRT2_F M_SQRT1_2_F FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON
    MAXFLOAT HUGE_VALF HUGE_VAL INFINITY NAN NULL FP_ILOGB0 FP_ILOGBNAN
    CLK_LOCAL_MEM_FENCE CLK_GLOBAL_MEM_FENCE CLK_FILTER_NEAREST CLK_FILTER_LINEAR
    CLK_NORMALIZED_COORDS_TRUE CLK_NORMALIZED_COORDS_FALSE CLK_ADDRESS_NONE CLK_ADDRESS_CLAMP
    CLK_ADDRESS_CLAMP_TO_EDGE CLK_ADDRESS_REPEAT CLK_ADDRESS_MIRRORED_REPEAT
    __DATE__ __TIME__ __FILE__ __LINE__ __COUNTER__ __BASE_FILE__ __TIMESTAMP__ __VERSION__
"""
_INTEGERS = {
    "__STDC__": 1, "__STDC_VERSION__": 199901, "__CHAR_BIT__": 8, "CHAR_BIT": 8,
    "CHAR_MAX": 2**7 - 1, "CHAR_MIN": -(2**7), "SCHAR_MAX": 2**7 - 1, "SCHAR_MIN": -(2**7),
    "UCHAR_MAX": 2**8 - 1, "SHRT_MAX": 2**15 - 1, "SHRT_MIN": -(2**15), "USHRT_MAX": 2**16 - 1,
    "INT_MAX": 2**31 - 1, "INT_MIN": -(2**31), "LONG_MAX": 2**63 - 1, "LONG_MIN": -(2**63),
    "__SCHAR_MAX__": 2**7 - 1, "__SHRT_MAX__": 2**15 - 1, "__INT_MAX__": 2**31 - 1,
    "__LONG_MAX__": 2**63 - 1, "__SIZEOF_SHORT__": 2, "__SIZEOF_INT__": 4, "__SIZEOF_LONG__": 8,
    "__SIZEOF_FLOAT__": 4, "__SIZEOF_DOUBLE__": 8, "__LITTLE_ENDIAN__": 1,
    "__BYTE_ORDER__": 1234, "__ORDER_LITTLE_ENDIAN__": 1234, "__ORDER_BIG_ENDIAN__": 4321,
    "FLT_DIG": 6, "FLT_MANT_DIG": 24, "FLT_RADIX": 2, "FLT_MAX_EXP": 128, "FLT_MIN_EXP": -125,
    "FLT_MAX_10_EXP": 38, "FLT_MIN_10_EXP": -37, "DBL_DIG": 15, "DBL_MANT_DIG": 53,
    "DBL_MAX_EXP": 1024, "DBL_MIN_EXP": -1021,
}  # fmt: skip

KNOWN_IN_CONDITIONS: Mapping[str, Number | None] = {
    **dict.fromkeys(_NO_INTEGERS.split()),
    **{name: Number(value) for name, value in _INTEGERS.items()},
    "UINT_MAX": Number(2**32 - 1, True),
    "ULONG_MAX": Number(2**64 - 1, True),
}
"""Values of the macros that every device defines; None if the value is perhaps no integer. These
macros decide ``#if``, but stay in the text, because the device's compiler expands them."""
_TEXTS_OF_COMPILERS = frozenset({"__FILE__", "__BASE_FILE__", "__TIMESTAMP__", "__VERSION__"})
"""Macros for strings whose lengths vary."""
_X86_PROCESSORS = ("x86-64", "haswell", "skylake-avx512", "icelake-server", "sapphirerapids",
    "znver2", "znver3", "znver4")  # fmt: skip
_TARGETS = (
    *(f"x86_64-linux-gnu -march={one}" for one in _X86_PROCESSORS),
    "aarch64-linux-gnu", "nvptx64-nvidia-cuda", "amdgcn-amd-amdhsa -mcpu=gfx90a",
    "riscv64-linux-gnu", "powerpc64le-linux-gnu", "i686-linux-gnu", "armv7-linux-gnueabihf",
    "spir-unknown-unknown", "spir64-unknown-unknown",
)  # fmt: skip
_MACRO_DEFINITION = 501
_WITH_MACROS = 1
"""libclang's flag DetailedPreprocessingRecord."""


@cache
def macros_of_clang() -> frozenset[str]:
    """Return the names of the macros that clang defines for the processors that run OpenCL."""
    name = "/nonexistent/llmperf/empty.cl"
    found: set[str] = set()
    for target in _TARGETS:
        for standard in ("CL1.2", "CL3.0"):
            words = ["-x", "cl", "-target", *target.split(), f"-cl-std={standard}", "-nostdinc"]
            unit = cindex.Index.create().parse(
                name,
                args=[*words, "-cl-no-stdinc", "-O2", "-cl-fast-relaxed-math"],
                unsaved_files=[(name, "")],
                options=_WITH_MACROS,
            )
            found |= {
                one.spelling
                for one in unit.cursor.get_children()
                if one._kind_id == _MACRO_DEFINITION
            }
    return frozenset(found)


_OF_HEADERS = re.compile(
    r"as_(?:size_t|u?intptr_t|ptrdiff_t|(?:u?(?:char|short|int|long)|float|double|half)\d*)"
    r"|atomic_(?:compare_exchange|exchange|fetch|flag|init|load|store|work_item)\w*"
    r"|v(?:load|store)a?(?:_half\w*)?|async_work_group_\w+|(?:get|read|write)_image\w+"
    r"|(?:work|sub)_group_\w+|to_(?:global|local|private)|ndrange_[123]D|kernel_exec|prefetch"
    r"|shuffle2?|upsample|wait_group_events|vec_step|ctz|size_t|u?intptr_t|ptrdiff_t"
    r"|CLK_\w+|CL_(?:COMPLETE|QUEUED|RUNNING|SUBMITTED|KHRONOS_\w+|TARGET_OPENCL_VERSION)"
    r"|ATOMIC_(?:FLAG|VAR)_INIT|DBL_(?:RADIX|M(?:AX|IN)_10_EXP)"
    r"|M_(?:E|LOG2E|LOG10E|LN2|LN10|PI|PI_2|PI_4|1_PI|2_PI|2_SQRTPI|SQRT2|SQRT1_2)_H"
    r"|CLANG_(?:HAS_RW_IMAGES|MAJOR)|IMG_[RW][OW]_AQ|INTTYPE|LLVM_(?:OLDER_THAN_)?\d+_0"
    r"|MAX_(?:KERNEL_ARGS|KERNEL_NAME_LENGTH|WORK_DIM)|SPIR_ADDRESS_SPACE_\w+"
    r"|_CL_(?:ALWAYSINLINE|CONVERGENT|NOINLINE|OVERLOADABLE|READNONE|READONLY|STATIC_ASSERT)"
    r"|__IF_\w+|__X86_IMAGE_H__|__(?:cnfn|conv|kernel_exec|ovld|purefn)"
)
"""Matches names that the OpenCL C headers of some PoCL define as macros, beyond the functions that
are declared for copies. It matches few names, because users choose names such as ``IMAGE_WIDTH``.
``double``, and ``ALIGN4`` and ``ALIGN8`` of a header that kernels do not include, are left out."""


@cache
def may_be_a_devices(name: str) -> bool:
    """Whether the compiler of some device may define a macro of this name before it reads a text.

    >>> may_be_a_devices("__x86_64__"), may_be_a_devices("min"), may_be_a_devices("USE_DOUBLE")
    (True, True, False)
    """
    return (
        DEVICE_MACRO.fullmatch(name) is not None
        or name in KNOWN_IN_CONDITIONS
        or name in _TEXTS_OF_COMPILERS
        or _OF_HEADERS.fullmatch(name) is not None
        or is_declared(name)
        or name in macros_of_clang()
    )


@cache
def is_only_a_macro(name: str) -> bool:
    """Whether a text that has this name depends on the device, if the text does not define it.

    Built-in functions and constants of OpenCL C may be macros, too, but each device has them.

    >>> is_only_a_macro("__ELF__"), is_only_a_macro("min"), is_only_a_macro("INT_MAX")
    (True, False, False)
    """
    if name in _TEXTS_OF_COMPILERS:
        return True
    if name in KNOWN_IN_CONDITIONS or is_declared(name):
        return False
    return DEVICE_MACRO.fullmatch(name) is not None or name in macros_of_clang()


KEYWORDS: Mapping[str, Number | None] = {"true": Number(1)}
"""clang reads ``true`` as 1 in ``#if`` of OpenCL C, though it is no macro."""
