"""A kernel that declares a function of the C library cannot write outside, where Landlock is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.collecting import Collect
from tests.support.in_process import llmperf
from tests.support.landlock import landlock_version, needs_filters

KERNEL = """
{outer}
__kernel void calls_{where}(__global int *a, int n) {{
    {inner}
    int i = get_global_id(0);
    if (i < n) {{
        a[i] = i;
        if (i == 0) {{
            char command[] = {{{command}, 0}};
            a[0] = system(command);
        }}
    }}
}}
"""
CHANGES_A_MODE = """
int chmod(const char *path, unsigned int mode);
__kernel void changes(__global int *a, int n) {{
    int i = get_global_id(0);
    if (i < n) {{
        a[i] = i;
        if (i == 0) {{
            char path[] = {{{path}, 0}};
            a[0] = chmod(path, 0777);
        }}
    }}
}}
"""
ARRAYS = "".join(
    f"volatile char b{k}[0x100000] = {{0}}; b{k}[n] = 5; a[i] += b{k}[n + 1];\n" for k in range(64)
)
NEEDS_MEMORY = f"""
__kernel void needs(__global ulong *a, int n) {{
    int i = get_global_id(0);
    {ARRAYS}
}}
"""
DECLARED = "int system(const char *command);"
HIDDEN_BY_AN_OVERLOAD = """
int __attribute__((overloadable)) mknodat(int x) {{ return x; }}
int mknodat(constant char *path, uint mode, ulong device);
__kernel void hides(__global int *a, int n) {{
    int i = get_global_id(0);
    a[i] = mknodat(i) + mknodat("{target}", 0100644u, 0ul);
}}
"""
AT_THE_START = """
int __attribute__((overloadable)) unlinkat(int x) {{ return x; }}
int unlinkat(constant char *path, int flags);
__attribute__((constructor)) static void at_the_start(void) {{ unlinkat("{target}", 0); }}
__kernel void starts(__global int *a, int n) {{
    int i = get_global_id(0);
    a[i] = unlinkat(i);
    if (n == 123456) at_the_start();
}}
"""

PUT_TOGETHER_BY_MACROS = """
#ifdef __clang__
int unlinkat(__constant char *path, int flags) {{ return 7; }}
#else
#define E
#define H #
#define Q ?
/E* *E/ H undef unlinkat
extern __inline __attri?Q/
bute__((gnu_inline)) int unlinkat(__constant char *path, int flags) {{ return 7; }}
#endif
__kernel void joins(__global int *a, int n) {{
    if (get_global_id(0) == 0) a[0] = unlinkat("{target}", 0);
}}
"""


def kernel(folder: Path, where: str, target: Path) -> Path:
    """Write a kernel that declares ``system`` outside or inside of its body, and calls it."""
    command = ",".join(str(byte) for byte in f"echo x>>{target}".encode())
    outer, inner = (DECLARED, "") if where == "outside" else ("", DECLARED)
    folder.mkdir(exist_ok=True)
    path = folder / f"{where}.cl"
    path.write_text(
        KERNEL.format(outer=outer, inner=inner, where=where, command=command), encoding="utf-8"
    )
    return path


@pytest.mark.skipif(landlock_version() < 1, reason="this Linux has no Landlock")
def test_a_kernel_that_is_collected_writes_nothing_outside(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    target = temporary / "target"  # beside the folder in which the child may write
    for where in ("outside", "inside"):
        kernel(tmp_path / "corpus", where, target)
    options = ("--samples-per-kernel", "2", "--set", "timing.spin_up_ms=0")
    environment = {"TMPDIR": str(temporary)}
    done = Collect(tmp_path / "corpus", tmp_path / "data", "cpu", options, environment).run()
    assert done.returncode in (0, 5), done.stderr  # 5: the runtime builds no such kernel
    assert not target.exists()


@needs_filters
def test_a_kernel_that_is_collected_changes_no_file_outside(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch(mode=0o600)
    (tmp_path / "corpus").mkdir()
    path = ",".join(str(byte) for byte in str(target).encode())
    source = tmp_path / "corpus" / "changes.cl"
    source.write_text(CHANGES_A_MODE.format(path=path), encoding="utf-8")
    options = ("--samples-per-kernel", "2", "--set", "timing.spin_up_ms=0")
    done = Collect(tmp_path / "corpus", tmp_path / "data", "cpu", options).run()
    assert done.returncode in (0, 5), done.stderr  # 5: the runtime builds no such kernel
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_kernel_that_needs_all_memory_ends_its_analysis(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cl"
    source.write_text(NEEDS_MEMORY, encoding="utf-8")
    sizes = ("--global-size", "1024", "--local-size", "64")
    done = llmperf("predict", source, "--model", "h200", *sizes)
    assert done.code == 0, done.err
    # PoCL has such arrays on a thread's stack.
    assert "needs more than 2,048 MiB of memory" in done.err or "SIGSEGV" in done.err


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_prediction_calls_no_function_of_the_host(tmp_path: Path, where: str) -> None:
    target = tmp_path / "target"  # in a temporary folder, where a confined process may write
    source = kernel(tmp_path / "source", where, target)
    sizes = ("--global-size", "1024", "--local-size", "64")
    done = llmperf("predict", source, "--model", "h200", *sizes)
    assert done.code == 0, done.err
    assert not target.exists()


@pytest.mark.parametrize("form", [HIDDEN_BY_AN_OVERLOAD, AT_THE_START, PUT_TOGETHER_BY_MACROS])
def test_a_prediction_calls_no_function_that_is_hidden(tmp_path: Path, form: str) -> None:
    """Once by an overload with a body, and once by words that macros put together."""
    is_made = form is HIDDEN_BY_AN_OVERLOAD
    target = tmp_path / "target"
    if not is_made:
        target.touch()
    source = tmp_path / "kernel.cl"
    source.write_text(form.format(target=target), encoding="utf-8")
    done = llmperf(
        "predict", source, "--model", "h200", "--global-size", "1024", "--local-size", "64"
    )
    assert done.code == 0, done.err
    assert target.exists() is not is_made
