"""KubeRay's own definition of a RayJob, to check manifests against.

``python -m tests.support.kuberay_schema`` fetches the definition into ``.corpus/`` over the
network. Owns the version and the path of the definition, and the check. The definition is
third-party code and is not committed.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

COMMIT = "feaf72facab4881ba2b179248bb67315634e229"
"""Commit of ray-project/kuberay, August 2026."""
URL = (
    f"https://raw.githubusercontent.com/ray-project/kuberay/{COMMIT}"
    "/helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml"
)
FILE = Path(__file__).resolve().parents[2] / ".corpus" / "kuberay" / "ray.io_rayjobs.yaml"


def fetch() -> Path:
    """Download the definition unless the file exists; return its path."""
    if not FILE.exists():
        with urllib.request.urlopen(URL, timeout=60) as answer:
            data = answer.read()
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_bytes(data)
    return FILE


def problems_of(manifest: Mapping[str, Any]) -> list[str]:
    """Return the fields of a manifest that KubeRay would refuse, or drop as unknown."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 1.4 MB: Python's own takes 10 s
    definition = yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader)
    version = manifest["apiVersion"].rpartition("/")[2]
    (schema,) = (
        one["schema"]["openAPIV3Schema"]
        for one in definition["spec"]["versions"]
        if one["name"] == version
    )
    wrong = jsonschema.Draft7Validator(schema).iter_errors(manifest)
    return [f"{one.json_path}: {one.message}" for one in wrong] + list(_unknown(manifest, schema))


def _unknown(value: Any, schema: Mapping[str, Any], path: str = "$") -> Iterator[str]:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for key, inner in value.items():
            if key in known:
                yield from _unknown(inner, known[key], f"{path}.{key}")
            elif isinstance(others, dict):
                yield from _unknown(inner, others, f"{path}.{key}")
            elif known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}: no field {key!r}"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unknown(inner, schema.get("items", {}), f"{path}[{number}]")


if __name__ == "__main__":
    fetch()
