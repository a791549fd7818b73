"""The settings of a job on Kubernetes: its cluster, and the resources of its pods."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from edl_horovod.config.checks import check, check_least

JOB_NAME_CHARACTERS = 40
"""Longest name of a job: a pod's host name, `NAME-coordinator-N`, may have 63 characters."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CORES = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_BYTES = re.compile(r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[a-z0-9][-.a-z0-9]*/[-._A-Za-z0-9]+")
_VOLUME_KINDS = ("claim", "host_path", "secret")
_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")


@dataclass(frozen=True, kw_only=True)
class WorkerPodConfig:
    """The resources of a worker pod; requests and limits are the same."""

    cpu: str = "1"
    """Cores of a worker pod, as Kubernetes writes them: `2`, `500m`."""
    memory: str = "2Gi"
    """Memory of a worker pod, for all its slots together: `4Gi`."""
    gpus: int = 0
    """GPUs of a worker pod."""
    gpu_resource: str = "nvidia.com/gpu"
    """What the cluster calls a GPU."""
    node_selector: dict[str, Any] = field(default_factory=dict)
    """Labels that the node of a worker pod must have: `{disktype: ssd}`."""
    tolerations: list[Any] = field(default_factory=list)
    """Taints that worker pods tolerate: `[{key: gpu, operator: Exists, effect: NoSchedule}]`."""

    def __post_init__(self) -> None:
        _check_quantities("kubernetes.worker", self.cpu, self.memory)
        _check_nodes("kubernetes.worker", self.node_selector, self.tolerations)
        check_least("kubernetes.worker", self, gpus=0)


@dataclass(frozen=True, kw_only=True)
class LauncherPodConfig:
    """The resources of the launcher pod; requests and limits are the same."""

    cpu: str = "500m"
    """Cores of the launcher pod, which runs the coordinator and host discovery, and no rank."""
    memory: str = "512Mi"
    """Memory of the launcher pod."""
    node_selector: dict[str, Any] = field(default_factory=dict)
    """Labels that the node of the launcher pod must have: `{pool: stable}`."""
    tolerations: list[Any] = field(default_factory=list)
    """Taints that the launcher pod tolerates, in addition to an unreachable node, for 10 s."""

    def __post_init__(self) -> None:
        _check_quantities("kubernetes.launcher", self.cpu, self.memory)
        _check_nodes("kubernetes.launcher", self.node_selector, self.tolerations)


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig:
    """The cluster of a job, and the properties of its pods (launch=kubernetes)."""

    name: str = ""
    """Name of the job in its namespace; empty makes one from the model's name, with a unique
    ending."""
    namespace: str = ""
    """Namespace of the job; empty takes the one of the context."""
    context: str = ""
    """Context of the kubeconfig; empty takes the current one."""
    style: Literal["elastic", "horovodrun", "mpirun"] = "elastic"
    """Who assigns the ranks: `elastic` (our coordinator), `horovodrun` (Horovod's own elastic
    driver, over ssh) or `mpirun` (a static ring, over ssh)."""
    image_pull_secrets: list[str] = field(default_factory=list)
    """Names of the secrets for pulling the image."""
    slots_per_worker: int = 1
    """Ranks in one worker pod."""
    worker: WorkerPodConfig = field(default_factory=WorkerPodConfig)
    launcher: LauncherPodConfig = field(default_factory=LauncherPodConfig)
    volumes: dict[str, Any] = field(default_factory=dict)
    """Volumes of all pods, by name: `{data: {claim: NAME, mount: /data}}`, or with host_path or
    secret in place of claim, and read_only. output and job_dir must lie in one all pods share."""
    priority_class: str = ""
    """PriorityClass of the worker pods; with a low one they are evicted when others need the
    nodes."""
    launcher_priority_class: str = ""
    """PriorityClass of the launcher pod; empty takes the workers' class."""
    service_account: str = ""
    """ServiceAccount of the launcher pod; empty makes one with only the rights that it needs."""
    env: dict[str, Any] = field(default_factory=dict)
    """Environment variables of all pods: `{TF_CPP_MIN_LOG_LEVEL: 1}`."""
    secret_env: dict[str, Any] = field(default_factory=dict)
    """Environment variables from existing secrets: `{AWS_SECRET_ACCESS_KEY: s3/key}`, the secret's
    name, a slash, its key."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Labels of all objects that are created, in addition to ours."""
    annotations: dict[str, Any] = field(default_factory=dict)
    """Annotations of the pods: `{sidecar.istio.io/inject: false}`."""
    interface: str = "eth0"
    """Network interface of the pods that the ring uses."""
    grace_seconds: int = 60
    """Seconds that a deleted pod has to finish its step and leave."""
    backoff_limit: int = 3
    """How often a failed launcher pod is replaced before the job fails."""
    ttl_seconds_after_finished: int | None = None
    """Seconds after which the finished launcher is removed; null keeps it."""
    suspend: bool = False
    """Whether the job is created without pods, to be started later (`edl resume`, or a queue)."""

    def __post_init__(self) -> None:
        is_name = not self.name or (
            len(self.name) <= JOB_NAME_CHARACTERS and _NAME.fullmatch(self.name) is not None
        )
        rule = f"must be lower-case letters, digits and -, at most {JOB_NAME_CHARACTERS} of them"
        check(is_name, "kubernetes.name", self.name, rule)
        check_least("kubernetes", self, slots_per_worker=1, grace_seconds=1)
        check_least("kubernetes", self, backoff_limit=0, ttl_seconds_after_finished=0)
        for secret in self.image_pull_secrets:
            rule = "must be a list of names of secrets"
            check(isinstance(secret, str), "kubernetes.image_pull_secrets", secret, rule)
        for name in ("env", "labels", "annotations"):
            _check_texts(f"kubernetes.{name}", getattr(self, name))
        self._check_variables()
        self._check_volumes()

    @property
    def gpu_request(self) -> str:
        """The setting that asks for GPUs; empty where it asks for none."""
        return f"kubernetes.worker.gpus={self.worker.gpus}" if self.worker.gpus else ""

    def _check_variables(self) -> None:
        for name in (*self.env, *self.secret_env):
            rule = "must be the name of an environment variable"
            check(_VARIABLE.fullmatch(name) is not None, "kubernetes.env", name, rule)
            is_twice = name in self.env and name in self.secret_env
            check(not is_twice, "kubernetes.env", name, "must not be in kubernetes.secret_env too")
        for name, value in self.secret_env.items():
            is_reference = isinstance(value, str) and _SECRET_KEY.fullmatch(value) is not None
            key = f"kubernetes.secret_env.{name}"
            # The value is not shown, because it may be the secret itself.
            check(is_reference, key, "...", "must be the name of a secret, a slash, and its key")

    def _check_volumes(self) -> None:
        for name, volume in self.volumes.items():
            key = f"kubernetes.volumes.{name}"
            check(
                _NAME.fullmatch(name) is not None, key, name, "must be lower-case, with digits, -"
            )
            known = {*_VOLUME_KINDS, "mount", "read_only"}
            is_dict = isinstance(volume, dict) and set(volume) <= known
            check(is_dict, key, volume, f"must be a dict of {', '.join(sorted(known))}")
            num_kinds = sum(kind in volume for kind in _VOLUME_KINDS)
            check(num_kinds == 1, key, volume, f"must have one of {', '.join(_VOLUME_KINDS)}")
            for kind in (*_VOLUME_KINDS, "mount"):
                value = volume.get(kind, "")
                check(isinstance(value, str), f"{key}.{kind}", value, "must be text")
            mount = volume.get("mount", "")
            check(mount.startswith("/"), f"{key}.mount", mount, "must be a path from the root")
            is_flag = isinstance(volume.get("read_only", False), bool)
            check(is_flag, f"{key}.read_only", volume.get("read_only"), "must be true or false")


def _check_quantities(prefix: str, cpu: str, memory: str) -> None:
    rule = "must be cores as Kubernetes writes them, as 2 or 500m"
    check(_CORES.fullmatch(cpu) is not None, f"{prefix}.cpu", cpu, rule)
    rule = "must be bytes as Kubernetes writes them, as 512Mi or 4Gi"
    check(_BYTES.fullmatch(memory) is not None, f"{prefix}.memory", memory, rule)


def _check_nodes(prefix: str, selector: dict[str, Any], tolerations: list[Any]) -> None:
    _check_texts(f"{prefix}.node_selector", selector)
    for toleration in tolerations:
        is_one = isinstance(toleration, dict) and set(toleration) <= set(_TOLERATION_KEYS)
        rule = f"must be dicts of {', '.join(_TOLERATION_KEYS)}"
        check(is_one, f"{prefix}.tolerations", toleration, rule)


def _check_texts(prefix: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        is_scalar = isinstance(value, str | int | float | bool)
        check(is_scalar, f"{prefix}.{key}", value, "must be text or a number")
