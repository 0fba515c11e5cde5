"""Kernels of strangers on a real compiler: nothing of this host's files, paths or secrets comes into a dataset."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmperf_common.ids import kernel_id, sha256_hex
from tests.support.collecting import Collect, descendants, kill
from workers.corpus.parquet import Corpus, write_corpus
from workers.corpus.read import corpus_sha256, read_sources
from workers.discovery.find import NoDevice, choose

pytestmark = pytest.mark.opencl

QUICK = (
    "--samples-per-kernel", "2",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.sample_budget_ms=20",
    "--set", "plan.max_work_items=4096",
    "--set", "limits.config_timeout_s=30",
)  # fmt: skip
SECRET = "hunter2hunter2"

ATTACKS = {
    "guarded": '#ifndef NEVER\n#include "../../../../../../../../../../../..{secret}"\n#endif\n{kernel}',
    "by_macro": '#define P "{secret}"\n#ifndef NEVER\n#include P\n#endif\n{kernel}',
    "digraph": '#ifndef NEVER\n%:include "../../../../../../../../../../..{secret}"\n#endif\n{kernel}',
    "trigraph": '#ifndef NEVER\n??=include "../../../../../../../../../../..{secret}"\n#endif\n{kernel}',
    "assembly": '{kernel}\n#ifndef NEVER\n__asm__(".include \\"{secret}\\"\\n .error");\n#endif',
    "incbin": '{kernel}\n#ifndef NEVER\n__asm__(".incbin \\"{secret}\\"");\n#endif',
    "embed": "#ifndef NEVER\n__constant char t[] = {{\n#embed \"{secret}\"\n}};\n#endif\n{kernel}",
    "good": "{kernel}",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cpu_device() -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(f"no CPU OpenCL device, so nothing of a compiler is tested: {found.message()}")


def kernel(name: str) -> str:
    return f"__kernel void {name}(__global int *x) {{ x[get_global_id(0)] = 1; }}\n"


def with_everything(folder: Path, secret: Path) -> Path:
    """A corpus of attacks; those that the front end refuses come in by a corpus file that was not checked."""
    sources = folder / "sources"
    sources.mkdir()
    (sources / "good.cl").write_text(kernel("good"))
    plain = read_sources([sources]).kernels[0]
    made = []
    for name, text in ATTACKS.items():
        source = text.format(secret=secret, kernel=kernel(name))
        made.append((name, source, ""))
    for name, options in {
        "include_folder": f"-I{secret.parent}",
        "include_file": f"-include {secret}",
        "behind_a_macro": f"-D 'X=1 -include {secret}'",
        "folder_behind_a_macro": f"-D 'X=1 -I{secret.parent}'",
    }.items():
        made.append((name, f'#include "{secret.name}"\n{kernel(name)}', options))
    kernels = []
    for name, source, options in made:
        identity = kernel_id(name=name, source=source, build_options=options)
        kernels.append(
            dataclasses.replace(
                plain,
                kernel_id=identity,
                family_id=identity,
                name=name,
                source=source,
                source_sha256=sha256_hex(source.encode()),
                build_options=options,
            )
        )
    kernels.sort(key=lambda one: one.kernel_id)
    path = folder / "corpus.parquet"
    write_corpus(path, Corpus(kernels=tuple(kernels), sha256=corpus_sha256(kernels)))
    return path


@pytest.mark.slow
def test_no_file_of_this_host_is_quoted(tmp_path: Path) -> None:
    secret = tmp_path / "secret-of-the-host"
    secret.write_text(f"password = {SECRET};\n")
    out = tmp_path / "out"
    corpus = with_everything(tmp_path, secret)
    done = Collect(corpus, out, "cpu", QUICK).run()
    assert done.returncode == 0, done.stderr
    rows = {
        row["name"]: row
        for file in out.glob("kernels/*")
        for row in pq.read_table(file).to_pylist()
    }
    statuses: dict[str, set[str]] = {}
    by_id = {row["kernel_id"]: name for name, row in rows.items()}
    everything = ""
    for file in out.glob("samples/*"):
        for row in pq.read_table(file).to_pylist():
            statuses.setdefault(by_id[row["kernel_id"]], set()).add(row["status"])
            everything += json.dumps(row, default=str)
    for row in rows.values():
        everything += json.dumps(
            {**row, "source": "", "path": "", "build": row["build"] or {}}, default=str
        )
    assert SECRET not in everything
    assert SECRET not in done.stderr + done.stdout
    built = {name for name, found in statuses.items() if found == {"ok"}}
    assert built == {"good"}
    refused = {name for name, found in statuses.items() if found == {"build_error"}}
    assert refused == rows.keys() - {"good"}
    logs = " ".join((row["build"] or {}).get("log") or "" for row in rows.values())
    for folder in (
        str(Path.home()),
        str(Path(os.__file__).parent),
        os.environ.get("VIRTUAL_ENV") or "/tmp/",
    ):
        assert folder not in logs.replace(str(secret), "")


@pytest.mark.slow
def test_children_have_no_secret_in_their_environment(tmp_path: Path) -> None:
    corpus = tmp_path / "kernels"
    corpus.mkdir()
    (corpus / "endless.cl").write_text(
        "__kernel void endless(__global int *x) { volatile int go = 1; while (go) x[get_global_id(0)] += 1; }"
    )
    for number in range(3):
        (corpus / f"good{number}.cl").write_text(kernel(f"good{number}"))
    secrets = {
        name: f"{SECRET}-{name}"
        for name in (
            "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "REDISCLI_AUTH", "RAY_AUTH_TOKEN",
            "HF_TOKEN", "GITHUB_TOKEN", "SOME_PASSWORD", "ANYTHING_ELSE",
        )
    }  # fmt: skip
    collect = Collect(corpus, tmp_path / "out", "cpu", QUICK, environment=secrets)
    process = collect.start()
    seen: dict[str, bytes] = {}
    try:
        deadline_s = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline_s:
            for child in descendants(process.pid):
                try:
                    environ = Path(f"/proc/{child}/environ").read_bytes()
                    command = b" ".join(Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"))
                except OSError:
                    continue
                for kind in (
                    b"parse_child",
                    b"compile_child",
                    b"run_child",
                    b"analysis_child",
                    b"discovery.trial_child",
                ):
                    if kind in command and environ:
                        seen.setdefault(kind.decode(), environ)
                        assert SECRET.encode() not in environ, command
            if len(seen) >= 4:
                break
            time.sleep(0.02)
    finally:
        kill(process.pid)
        process.communicate()
    assert {"compile_child", "run_child", "parse_child"} <= seen.keys()
