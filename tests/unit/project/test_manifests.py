"""The manifests of ``configs/cluster/``: of the form that Ray and KubeRay read, each command in them one that exists."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cluster.config import ClusterCollectConfig
from cluster.pool.slots import matches
from llmperf.cli.ledger_option import LEDGER_VARIABLE
from llmperf.cli.main import app
from llmperf_common.config import load_config
from tests.support import kuberay_schema
from tests.support.factories.manifest_models import MODELS, Deployment, RayJob, Service, VolumeClaim

FOLDER = resources.files("configs") / "cluster"
NAMES = ("on-premise.yaml", "rayjob.yaml")


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text_of("rayjob.yaml"))}


def models() -> tuple[RayJob, Deployment, Service, VolumeClaim]:
    made = {kind: MODELS[kind].model_validate(one) for kind, one in documents().items()}
    job, deployment = made["RayJob"], made["Deployment"]
    service, claim = made["Service"], made["PersistentVolumeClaim"]
    assert isinstance(job, RayJob)
    assert isinstance(deployment, Deployment)
    assert isinstance(service, Service)
    assert isinstance(claim, VolumeClaim)
    return job, deployment, service, claim


def commands_in(name: str, program: str) -> list[list[str]]:
    """Every call of a program in a file, comments included; lines that go on are joined."""
    text = re.sub(r"\\\n# *", " ", text_of(name))
    if name == "rayjob.yaml":  # the entrypoint is folded
        text += "\n" + documents()["RayJob"]["spec"]["entrypoint"]
        text = re.sub(r"^    (?:llmperf|--).*$", "", text, flags=re.MULTILINE)
    found = []
    for line in text.splitlines():
        match = re.search(rf"(?:^|[\s/]){program} ((?:collect|status|start|stop)(?: .*)?)$", line)
        if match:
            found.append(shlex.split(match[1]))
    return found


def test_the_manifests_are_these() -> None:
    assert (
        tuple(sorted(one.name for one in FOLDER.iterdir() if one.name.endswith(".yaml"))) == NAMES
    )


@pytest.mark.parametrize(("name", "number"), [("on-premise.yaml", 2), ("rayjob.yaml", 2)])
def test_every_llmperf_command_is_one(name: str, number: int) -> None:
    found = commands_in(name, "llmperf")
    assert len(found) == number
    tree: Any = typer.main.get_command(app)
    for words in found:
        context = tree.commands[words[0]].make_context(words[0], words[1:])
        assert context.params["ledger"] is None, (
            "its password would show in `ps` and in Ray's list of jobs"
        )
        assert context.params["ledger_file"] or name == "rayjob.yaml"
        if words[0] == "collect":
            assert context.params["cluster"] is True
            config = load_config(
                ClusterCollectConfig,
                preset="default",
                preset_folder="collect",
                overrides=context.params["set_"],
            )
            (pool,) = config.cluster.pools
            assert matches({"pool": "gpu"}, pool.labels)
            assert not matches({"pool": "head"}, pool.labels)


def test_every_ray_command_is_one() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    found = commands_in("on-premise.yaml", "ray")
    assert [words[0] for words in found] == ["stop", "start", "stop", "start"]
    for words in found:
        context = scripts.cli.commands[words[0]].make_context(words[0], words[1:])
        assert words[0] == "stop" or context.params["labels"].startswith("pool=")


def test_the_launcher_file_is_of_rays_schema() -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config  # noqa: PLC0415, TID251

    config = yaml.safe_load(text_of("on-premise.yaml"))
    prepared = prepare_config(config)  # as `ray up` does before it looks
    validate_config(prepared)
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])
    validate_config({**config, "cluster_synced_files": []})  # our own lines, without its defaults


def test_the_job_is_of_its_form() -> None:
    assert set(documents()) == set(MODELS)
    job, deployment, service, claim = models()
    cluster = job.spec.rayClusterSpec
    groups = [cluster.headGroupSpec, *cluster.workerGroupSpecs]
    for group in groups:
        (volume,) = group.template.spec.volumes
        assert volume.persistentVolumeClaim is not None
        assert volume.persistentVolumeClaim.claimName == claim.metadata.name
        (container,) = group.template.spec.containers
        assert [mount.name for mount in container.volumeMounts] == [volume.name]
        out = re.search(r"--out (\S+)", job.spec.entrypoint)
        assert out
        assert out[1].startswith(container.volumeMounts[0].mountPath + "/")
    (head,) = cluster.headGroupSpec.template.spec.containers
    variables = {one.name: one for one in head.env}
    ledger = variables[LEDGER_VARIABLE].value or ""
    assert f"@{service.metadata.name}:{service.spec.ports[0].port}/" in ledger
    assert "$(REDIS_PASSWORD)" in ledger
    names = list(variables)
    assert names.index("REDIS_PASSWORD") < names.index(LEDGER_VARIABLE), "it is filled in"
    assert deployment.spec.template.metadata.labels == service.spec.selector
    assert deployment.spec.selector.matchLabels == service.spec.selector


def test_only_workers_have_gpus() -> None:
    cluster = models()[0].spec.rayClusterSpec
    (head,) = cluster.headGroupSpec.template.spec.containers
    assert "nvidia.com/gpu" not in head.resources.limits
    for group in cluster.workerGroupSpecs:
        (worker,) = group.template.spec.containers
        assert int(worker.resources.limits["nvidia.com/gpu"]) >= 1
        assert group.labels["pool"] != cluster.headGroupSpec.labels["pool"]


def test_the_job_is_what_kuberay_defines() -> None:
    if not kuberay_schema.FILE.exists():
        pytest.skip(
            "KubeRay's definition is not here: run `python -m tests.support.kuberay_schema` with a network"
        )
    job = documents()["RayJob"]
    assert kuberay_schema.problems_of(job) == []
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplica"] = 1
    job["spec"]["backoffLimit"] = "two"
    told = kuberay_schema.problems_of(job)
    assert any("minReplica" in one for one in told)
    assert any("backoffLimit" in one for one in told)


def pages() -> list[Path]:
    """Everything that an operator copies commands from."""
    root = Path(__file__).resolve().parents[3]
    return [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "configs").rglob("*.yaml")]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_what_all_interfaces_open_is_said(path: Path) -> None:
    """Within three lines of each ``0.0.0.0``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines):
        if "0.0.0.0" in line:
            around = " ".join(lines[max(0, index - 3) : index + 4])
            assert re.search(r"\b(opens|every network|all interfaces)\b", around, re.IGNORECASE), (
                line
            )
