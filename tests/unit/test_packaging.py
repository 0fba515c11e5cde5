"""What a wheel holds, what the extras bring, and that the types of the API reach a user's checker."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from llmperf.cli.doctor import _EXTRAS

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("llmperf", "llmperf_common", "workers", "cluster", "trainer", "configs")


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = project["project"]["optional-dependencies"]
    return found


def test_a_predictor_does_not_bring_torch() -> None:
    names = {name: {text.split(">")[0] for text in texts} for name, texts in extras().items()}
    assert names["train"] == {"lightgbm", "scikit-learn"}
    assert names["deepspeed"] == {"torch", "transformers", "safetensors", "deepspeed"}


def test_doctor_knows_the_extras() -> None:
    assert set(_EXTRAS) <= set(extras())


def test_a_wheel_holds_types_and_data(tmp_path: Path) -> None:
    """Of a copy: building leaves ``build/`` behind."""
    copy = tmp_path / "copy"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if name.split("/")[0] in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((REPOSITORY / name).read_bytes())
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(copy), *options],
        check=True,
        timeout=100,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    data = (".toml", ".yaml", ".lua", ".h", ".cl", ".css", ".html", ".js")
    wanted = {
        path.relative_to(copy).as_posix()
        for package in PACKAGES
        for path in (copy / package).rglob("*")
        if path.suffix in data
    }
    assert wanted <= held
