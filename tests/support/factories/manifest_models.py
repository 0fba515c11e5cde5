"""Strict models of our Kubernetes manifest: a misspelt or misplaced field is an error."""

# ruff: noqa: N815  (Kubernetes spells its fields like this)
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """A model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Metadata(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None = None
    labels: dict[str, str] = {}


class SecretKeyRef(Strict):
    name: str
    key: str


class ValueFrom(Strict):
    secretKeyRef: SecretKeyRef


class Environment(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Z_]+$")]
    value: str | None = None
    valueFrom: ValueFrom | None = None


class ContainerPort(Strict):
    containerPort: int
    name: str | None = None


class Resources(Strict):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Mount(Strict):
    name: str
    mountPath: str


class TcpSocket(Strict):
    port: int


class Probe(Strict):
    tcpSocket: TcpSocket


class Container(Strict):
    name: str
    image: str
    command: list[str] = []
    args: list[str] = []
    env: list[Environment] = []
    ports: list[ContainerPort] = []
    resources: Resources
    volumeMounts: list[Mount]
    readinessProbe: Probe | None = None


class Claim(Strict):
    claimName: str


class Volume(Strict):
    name: str
    emptyDir: dict[str, str] | None = None
    persistentVolumeClaim: Claim | None = None


class PodSpec(Strict):
    containers: list[Container]
    volumes: list[Volume]


class Template(Strict):
    metadata: Metadata = Metadata()
    spec: PodSpec


class HeadGroup(Strict):
    labels: dict[str, str]
    rayStartParams: dict[str, str]
    template: Template


class WorkerGroup(HeadGroup):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int


class AuthOptions(Strict):
    mode: Literal["token"]


class RayClusterSpec(Strict):
    rayVersion: str
    authOptions: AuthOptions
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class RayJobSpec(Strict):
    submissionMode: Literal["HTTPMode", "K8sJobMode"]
    entrypoint: str
    backoffLimit: int
    shutdownAfterJobFinishes: bool
    ttlSecondsAfterFinished: int
    rayClusterSpec: RayClusterSpec


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec


class Selector(Strict):
    matchLabels: dict[str, str]


class Strategy(Strict):
    type: Literal["Recreate"]


class DeploymentSpec(Strict):
    replicas: Literal[1]
    strategy: Strategy
    selector: Selector
    template: Template


class Deployment(Strict):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ServicePort(Strict):
    name: str
    port: int
    targetPort: int


class ServiceSpec(Strict):
    selector: dict[str, str]
    ports: list[ServicePort]


class Service(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class ClaimSpec(Strict):
    accessModes: list[Literal["ReadWriteMany"]]
    storageClassName: str
    resources: Resources


class VolumeClaim(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


MODELS: dict[str, type[BaseModel]] = {
    "RayJob": RayJob,
    "Deployment": Deployment,
    "Service": Service,
    "PersistentVolumeClaim": VolumeClaim,
}
