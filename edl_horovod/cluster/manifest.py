"""The manifests of a job in a cluster, computed without access to the cluster."""

import base64
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import yaml

from edl_horovod.cluster import objects, pods
from edl_horovod.cluster.pods import COORDINATOR_PORT, Manifest
from edl_horovod.cluster.styles import style_of
from edl_horovod.config import resolved, tasks
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import with_job_dir
from edl_horovod.records.sources.table import kind_of

MAX_CONFIG_BYTES = 1024 * 1024 - 4096
"""Limit for the settings in a ConfigMap, of which the API server accepts 1 MiB in total."""
_FOLDER = re.compile(r"(?:^|(?<=, ))/(?:(?:(?!, (?:/|conf/)).)*/)?", re.DOTALL)
"""The folder of a file in an origin, `FILE, conf/FILE, command line`; files of ours have none."""


@dataclass(frozen=True, kw_only=True)
class JobManifests:
    """The manifests of a job."""

    config: JobConfig
    """The settings as the pods read them."""
    mpijob: Manifest
    parts: tuple[Manifest, ...]
    """The other objects, which the pods need to start; the MPIJob must own them."""

    @property
    def all(self) -> tuple[Manifest, ...]:
        """All manifests, in the order of their creation."""
        return (self.mpijob, *self.parts)


def job_manifests(config: JobConfig, *, name: str, namespace: str, secret: bytes) -> JobManifests:
    """Compute the manifests of a job.

    Args:
        config: The job, resolved, with its image; its paths are those of the pods.
        name: The name of the job.
        namespace: The job's namespace; empty leaves it open until they are applied.
        secret: The job's secret, by which workers prove to the coordinator that they belong to it.

    Raises:
        ConfigError: A path is on no volume, the configuration is too long, or settings contradict.
    """
    config = with_job_dir(config)
    # Those who read the objects, or keep the manifests, see no folders of the user's machine.
    origins = {key: _FOLDER.sub("", origin) for key, origin in config.origins.items()}
    config = replace(config, origins=origins)
    _check(config)
    owned = objects.owned_name(name)
    text = resolved.to_yaml(config)
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"The job's configuration is too long for a ConfigMap: at most {MAX_CONFIG_BYTES} bytes"
            " fit.",
            received=f"{len(text.encode())} bytes",
            hint="Put long parameters into the model's file.",
        )
    parts = [_object("v1", "ConfigMap", owned, data={resolved.FILE_NAME: text})]
    if style_of(config).has_coordinator:
        data = {"secret": base64.b64encode(secret).decode()}
        parts += [_object("v1", "Secret", owned, type="Opaque", data=data), _service(name)]
    if not style_of(config).is_static and not config.kubernetes.service_account:
        # The largest number of worker pods that the job can be scaled to.
        most_ranks = tasks.largest_ring(config)
        most_pods = math.ceil(most_ranks / config.kubernetes.slots_per_worker)
        parts += _rights(name, namespace, most_pods)
    parts.append(_network_policy(name))
    mpijob = _mpijob(config, name)
    more = pods.texts(config.kubernetes.labels)
    for manifest in (mpijob, *parts):
        if namespace:
            manifest["metadata"]["namespace"] = namespace
        manifest["metadata"]["labels"] = {**more, **objects.job_labels(name)}
    return JobManifests(config=config, mpijob=mpijob, parts=tuple(parts))


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """Write manifests as one YAML stream, as `kubectl` reads it."""
    return "---\n".join(
        yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=100) for manifest in manifests
    )


class _Plain(yaml.SafeDumper):
    """Writes YAML with indented lists, multi-line texts as blocks, and no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists as well, as yamllint requires."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Write an object again instead of an alias for it."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


def _check(config: JobConfig) -> None:
    assert config.image, "the job has no image yet"
    for key in ("output", "job_dir", "trained_model", "init_from"):
        path = getattr(config, key)
        if path:
            _check_on_volume(config, key, path, is_written=key in ("output", "job_dir"))
    for key in ("data", "validation_data"):
        data = getattr(config, key)
        for path in kind_of(data).local_patterns(data):
            _check_on_volume(config, key, path, is_written=False)
    if config.kubernetes.secret_env and not style_of(config).has_coordinator:
        raise ConfigError(
            "kubernetes.secret_env is for kubernetes.style=elastic: over ssh the values would be on"
            " a command line.",
            received=f"kubernetes.style={config.kubernetes.style}",
            hint="Mount the secret: kubernetes.volumes={login: {secret: NAME, mount: /login}}.",
        )
    tasks.check_start(config)
    slots = config.kubernetes.slots_per_worker
    if config.launch.np % slots:
        raise ConfigError(
            "launch.np must be a multiple of kubernetes.slots_per_worker.",
            received={"launch.np": config.launch.np, "kubernetes.slots_per_worker": slots},
        )
    if config.elastic.autoscale and not style_of(config).has_coordinator:
        raise ConfigError(
            "elastic.autoscale is for kubernetes.style=elastic: horovodrun takes all the ranks it"
            " gets, mpirun keeps those it has.",
            received=f"kubernetes.style={config.kubernetes.style}",
            hint="Leave one of the two out.",
        )
    if config.elastic.spares and style_of(config).has_coordinator:
        raise ConfigError(
            "elastic.spares are for one machine.",
            received={"elastic.spares": config.elastic.spares},
            hint="In a cluster a pod more than elastic.max_np needs waits as a spare: raise"
            " launch.np.",
        )


def _check_on_volume(config: JobConfig, key: str, path: str, *, is_written: bool) -> None:
    volume = _volume_of(config, path)
    if volume is None:
        mounts = ", ".join(volume["mount"] for volume in config.kubernetes.volumes.values())
        mounted = f"volumes at {mounts}" if mounts else "no kubernetes.volumes"
        raise ConfigError(
            f"{key} must lie in a volume that the pods mount.",
            received=f"{key}={path}, {mounted}",
            hint="Give a path that begins with a volume's mount; kubernetes.volumes={data: {claim:"
            " NAME, mount: /data}} mounts one.",
        )
    if is_written and (volume.get("read_only") or "secret" in volume):
        raise ConfigError(
            f"{key} must lie in a volume that can be written.",
            received=f"{key}={path}, on the read-only volume at {volume['mount']}",
        )


def _volume_of(config: JobConfig, path: str) -> dict[str, Any] | None:
    """The volume of a path in a pod: the innermost one that is mounted above it."""
    volumes = config.kubernetes.volumes.values()
    above = [v for v in volumes if PurePosixPath(path).is_relative_to(v["mount"])]
    return max(above, key=lambda volume: len(volume["mount"]), default=None)


def _mpijob(config: JobConfig, name: str) -> Manifest:
    settings = config.kubernetes
    policy: dict[str, Any] = {
        # When the launcher has ended, running pods are removed; ended ones are kept for their logs.
        "cleanPodPolicy": "Running",
        "backoffLimit": settings.backoff_limit,
        "suspend": settings.suspend,
    }
    if settings.ttl_seconds_after_finished is not None:
        policy["ttlSecondsAfterFinished"] = settings.ttl_seconds_after_finished
    num_pods = config.launch.np // settings.slots_per_worker
    # Where the image's user, who is not root, has ssh look for keys.
    ssh = {} if style_of(config).has_coordinator else {"sshAuthMountPath": pods.SSH_KEYS}
    return _object(
        "kubeflow.org/v2beta1",
        "MPIJob",
        name,
        spec={
            "slotsPerWorker": settings.slots_per_worker,
            **ssh,
            # Each launcher waits for its workers itself: the other policy has no effect on a job
            # that is created suspended, as each of ours is.
            "launcherCreationPolicy": "AtStartup",
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    # A new pod each time, so that the log of a failed one is kept.
                    "restartPolicy": "Never",
                    "template": pods.launcher(config, name),
                },
                "Worker": {
                    "replicas": num_pods,
                    # Restarted in the same pod, with its identity, as soon as the process ends.
                    "restartPolicy": "OnFailure",
                    "template": pods.worker(config, name),
                },
            },
        },
    )


def _service(name: str) -> Manifest:
    return _object(
        "v1",
        "Service",
        objects.coordinator_service(name),
        spec={
            # Headless: the name resolves to the pod itself, whose end is noticed at once.
            "clusterIP": "None",
            "selector": objects.pod_labels(name, objects.LAUNCHER),
            "publishNotReadyAddresses": True,
            "ports": [{"name": "coordinator", "port": COORDINATOR_PORT}],
        },
    )


def _rights(name: str, namespace: str, most_pods: int) -> list[Manifest]:
    """The launcher's account, which may read pods and remove the job's failed workers."""
    owned, group = objects.owned_name(name), "rbac.authorization.k8s.io"
    place = {"namespace": namespace} if namespace else {}
    workers = [objects.worker_pod(name, index) for index in range(most_pods)]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": workers, "verbs": ["delete"]},
    ]
    return [
        _object("v1", "ServiceAccount", owned, automountServiceAccountToken=False),
        _object(f"{group}/v1", "Role", owned, rules=rules),
        _object(
            f"{group}/v1",
            "RoleBinding",
            owned,
            roleRef={"apiGroup": group, "kind": "Role", "name": owned},
            subjects=[{"kind": "ServiceAccount", "name": owned, **place}],
        ),
    ]


def _network_policy(name: str) -> Manifest:
    """Allow calls only between the job's own pods, as a ring has no authentication of its own."""
    launchers = objects.pod_labels(name, objects.LAUNCHER).items()
    workers = objects.pod_labels(name, objects.WORKER).items()
    own_pods = {"matchLabels": {key: value for key, value in launchers if (key, value) in workers}}
    return _object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        objects.owned_name(name),
        spec={
            "podSelector": own_pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own_pods}]}],
        },
    )


def _object(api_version: str, kind: str, name: str, **content: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}
