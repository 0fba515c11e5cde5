"""Copies ``kernels/`` into wheels as ``llmperf/kernels/``; pyproject.toml has everything else.

A mapped package (``package-dir``) would need the list of all packages, and editable installs would
import through a hook. An editable install reads the checkout's ``kernels/``
(``llmperf/own_kernels.py``).
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

KERNELS = Path("kernels")


class BuildWithKernels(build_py):
    """Builds the packages and adds the OpenCL kernels."""

    def run(self) -> None:
        """Copy the packages and the kernels into the build folder."""
        super().run()
        if not self.editable_mode:
            for source, target in self._kernels().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return all files of the wheel."""
        kernels = [] if self.editable_mode else list(self._kernels().values())
        return [*super().get_outputs(include_bytecode), *kernels]

    def get_source_files(self) -> list[str]:
        """Return all files of the source distribution."""
        return [*super().get_source_files(), *self._kernels()]

    def _kernels(self) -> dict[str, str]:
        folder = Path(self.build_lib) / "llmperf" / "kernels"
        return {
            str(path): str(folder / path.name)
            for path in sorted(KERNELS.iterdir())
            if path.is_file()
        }


setup(cmdclass={"build_py": BuildWithKernels})
