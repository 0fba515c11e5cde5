"""A PoCL that aborts or hangs in its compiler (``icd.c``), to be found in the place of the wheel's.

Owns its compilation. ``python -m tests.stub_icd hanging COMMAND…`` runs a command on a machine whose PoCL hangs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.chaos.unkind import find_compiler

SOURCE = Path(__file__).with_name("icd.c")
MODES = {"aborting": ("-DABORTS",), "hanging": ()}


def build_stub(mode: str, folder: Path, *, devices: str = "", name: str = "pocl") -> Path:
    """Compile the runtime and return its ICD file, for ``LLMPERF_POCL_ICD``.

    Args:
        mode: ``aborting`` or ``hanging``.
        folder: for library and ICD file.
        devices: ``GPUS`` or ``EMPTY``; one CPU device by default.
        name: of the library and the ICD file: by it a runtime is known.

    Raises:
        RuntimeError: There is no C compiler.
    """
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or clang) for the stub of an OpenCL runtime")
    library = folder / f"lib{name}-{mode}{devices.lower()}.so"
    options = [*MODES[mode], *([f"-D{devices}"] if devices else [])]
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *options]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    icd = folder / f"{name}-{mode}{devices.lower()}.icd"
    icd.write_text(f"{library}\n", encoding="utf-8")
    return icd
