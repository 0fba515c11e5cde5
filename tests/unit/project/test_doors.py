"""Each heavy library has one door: no other module imports it, inside functions and by name included.

Ruff and import-linter see import statements; ``require("deepspeed", …)`` is a call, which neither sees.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = ("llmperf", "llmperf_common", "workers", "cluster", "trainer")
DOORS = {
    "deepspeed": ("trainer/fit/engine.py",),
    "transformers": ("trainer/regressor/", "trainer/prompt/"),
    "tokenizers": ("trainer/prompt/tokenizer.py",),
    "safetensors": ("trainer/regressor/", "trainer/fit/"),
    "torch": (
        "trainer/regressor/",
        "trainer/fit/",
        "trainer/life/fitting.py",  # asks whether it is installed, before trainer/fit is imported
    ),
    "ray": (
        "cluster/ray/actor.py",
        "cluster/ray/runtime.py",
        "trainer/launch/ray.py",
        "llmperf/collecting.py",  # asks whether it is installed, before cluster is imported
    ),
}


def imported(source: str) -> Iterator[str]:
    """Give the top-level names of what a source imports, by statement or by a call with the name."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("require", "import_module", "__import__"):
                names = [str(node.args[0].value)]
        yield from (name.split(".")[0] for name in names)


def test_imports_are_seen_in_every_form():
    source = (
        "import a.b\nfrom c.d import e\nfrom . import f\n"
        "def g():\n    import h\n    require('i.j', 'x')\n    importlib.import_module('k')\n"
    )
    assert sorted(imported(source)) == ["a", "c", "h", "i", "k"]


@pytest.fixture(scope="module")
def imports() -> dict[str, frozenset[str]]:
    """What each module imports, by the module's path."""
    return {
        path.relative_to(REPOSITORY).as_posix(): frozenset(
            imported(path.read_text(encoding="utf-8"))
        )
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*.py")
    }


@pytest.mark.parametrize("library", DOORS)
def test_a_library_is_imported_at_its_door_only(library, imports):
    users = [path for path, names in imports.items() if library in names]
    assert users, "the door has no user: another library took its place?"
    assert [user for user in users if not user.startswith(DOORS[library])] == []
