"""The pod templates of a job's launcher and workers: commands, environment, volumes, resources."""

import math
from collections.abc import Mapping
from typing import Any

from edl_horovod.cluster import objects
from edl_horovod.cluster.styles import style_of
from edl_horovod.config import resolved
from edl_horovod.config.kubernetes import LauncherPodConfig, WorkerPodConfig
from edl_horovod.config.schema import JobConfig
from edl_horovod.supervisor.plan import thread_variables

Manifest = dict[str, Any]

COORDINATOR_PORT = 7707
CONFIG_DIR = "/edl"
CONFIG_FILE = f"{CONFIG_DIR}/{resolved.FILE_NAME}"
SECRET_DIR = "/edl-secret"
SECRET_FILE = f"{SECRET_DIR}/secret"
READY_DIR = "/tmp/edl-ready"
"""It outlives the restart of a container, so the first process that starts there empties it."""
SSH_PORT = 2222
HOME = "/home/edl"
SSH_KEYS = f"{HOME}/.ssh"
"""Where docker/ssh/sshd_config expects the job's key, which mpi-operator creates."""
SSHD = ["/usr/sbin/sshd", "-De", "-f", "/etc/edl/sshd_config"]
AWAY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MOVE_SECONDS = 10
"""Time after which a launcher leaves a lost node for another one; Kubernetes' default is 300 s."""
WRITABLE = {"edl-tmp": "/tmp", "edl-home": HOME}
"""The only writable folders beside the volumes: for temporary files (TensorFlow, Open MPI), and for
caches (horovodrun, Keras, CUDA)."""
USER = 1000
"""The user of docker/Dockerfile; also the group of volumes, so that the user can write to them."""
SECRET_MODE = 0o440
"""Mode of files that only root and the pod's group may read."""


def launcher(config: JobConfig, name: str) -> Manifest:
    """The template of the launcher pod, with the coordinator, horovodrun or mpirun."""
    settings = config.kubernetes
    variables = [
        _field("EDL_POD_IP", "status.podIP"),
        _field("EDL_NAMESPACE", "metadata.namespace"),
        _variable("EDL_JOB", name),
    ]
    if style_of(config).has_coordinator:
        variables.append(_variable("EDL_SECRET_FILE", SECRET_FILE))
    command = _program("cluster.pod.launcher")
    container = _container(config, objects.LAUNCHER, command, variables)
    is_static = style_of(config).is_static
    account = settings.service_account or objects.owned_name(name)
    return _template(
        config,
        name,
        container,
        priorityClassName=settings.launcher_priority_class or settings.priority_class,
        nodeSelector=texts(settings.launcher.node_selector),
        tolerations=_moves_soon(settings.launcher.tolerations),
        serviceAccountName="" if is_static else account,
        automountServiceAccountToken=not is_static,
    )


def worker(config: JobConfig, name: str) -> Manifest:
    """The template of a worker pod.

    With a coordinator the pod runs a worker process for each slot. Otherwise it runs an sshd,
    through which horovodrun or mpirun starts the ranks.
    """
    settings = config.kubernetes
    has_coordinator = style_of(config).has_coordinator
    container = _elastic_worker(config, name) if has_coordinator else _ssh_worker(config)
    return _template(
        config,
        name,
        container,
        automountServiceAccountToken=False,
        priorityClassName=settings.priority_class,
        nodeSelector=texts(settings.worker.node_selector),
        tolerations=settings.worker.tolerations,
    )


def threads_of(config: JobConfig) -> dict[str, str]:
    """The variables that limit a rank's CPU threads; the slots share the CPU request of the pod."""
    cpu = config.kubernetes.worker.cpu
    cores = float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
    fair_share = max(1, math.floor(cores / config.kubernetes.slots_per_worker))
    return thread_variables(config.launch.threads_per_rank or fair_share)


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert values of labels, variables and the like to the strings that Kubernetes requires."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }


def _moves_soon(tolerations: list[Manifest]) -> list[Manifest]:
    """Add tolerations of a lost node, for a short time, to those of a launcher if it has none."""
    tolerated = {toleration.get("key") for toleration in tolerations}
    lasting = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": MOVE_SECONDS}
    return [*tolerations, *({"key": key, **lasting} for key in AWAY_TAINTS if key not in tolerated)]


def _elastic_worker(config: JobConfig, name: str) -> Manifest:
    settings = config.kubernetes
    command = _program("worker")
    if settings.slots_per_worker > 1:
        command = [*_program("cluster.pod.worker"), "--slots", str(settings.slots_per_worker)]
    variables = [
        _field("EDL_POD_NAME", "metadata.name"),
        _field("EDL_POD_UID", "metadata.uid"),
        # The UID distinguishes a pod from a later one of the same name.
        _variable("EDL_HOST", "$(EDL_POD_NAME).$(EDL_POD_UID)"),
        _variable("EDL_SLOT", "0"),
        _variable("EDL_COORDINATOR", f"{objects.coordinator_service(name)}:{COORDINATOR_PORT}"),
        _variable("EDL_SECRET_FILE", SECRET_FILE),
        _variable("EDL_READY_FILE", f"{READY_DIR}/0"),
        _variable("HOROVOD_GLOO_IFACE", settings.interface),
        *(_variable(*pair) for pair in threads_of(config).items()),
    ]
    container = _container(config, objects.WORKER, command, variables)
    container["readinessProbe"] = {
        # Ready means warm: a worker creates a file there when it could join the ring at once.
        "exec": {"command": ["sh", "-c", f"ls {READY_DIR} | grep -q ."]},
        "periodSeconds": 1,
        # Busy nodes are slow nodes; a pod that is not ready leaves the ring.
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
    return container


def _ssh_worker(config: JobConfig) -> Manifest:
    is_elastic = not style_of(config).is_static
    variables = [_field("EDL_POD_IP", "status.podIP")] if is_elastic else []
    container = _container(config, objects.WORKER, SSHD, variables)
    container["readinessProbe"] = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}
    if is_elastic:
        # The sshd ends at SIGTERM, and its ranks with it, so they leave the ring before that.
        hook = {"exec": {"command": _program("cluster.pod.pre_stop")}}
        container["lifecycle"] = {"preStop": hook}
    return container


def _program(module: str) -> list[str]:
    return ["python", "-m", f"edl_horovod.{module}", "--config", CONFIG_FILE]


def _container(
    config: JobConfig, role: str, command: list[str], variables: list[Manifest]
) -> Manifest:
    settings = config.kubernetes
    env = [_variable(*pair) for pair in texts({"HOME": HOME, **settings.env}).items()]
    env += [_secret_variable(key, value) for key, value in settings.secret_env.items()]
    mounts = [{"name": "edl-config", "mountPath": CONFIG_DIR, "readOnly": True}]
    if style_of(config).has_coordinator:
        mounts.append({"name": "edl-secret", "mountPath": SECRET_DIR, "readOnly": True})
    for name, volume in settings.volumes.items():
        flag = {"readOnly": True} if volume.get("read_only") else {}
        mounts.append({"name": name, "mountPath": volume["mount"], **flag})
    mounts += [{"name": name, "mountPath": at} for name, at in _own_writable(config).items()]
    resources = settings.worker if role == objects.WORKER else settings.launcher
    return {
        "name": role,
        "image": config.image,
        "command": command,
        "env": env + variables,
        "resources": _resources(resources),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _resources(asked: WorkerPodConfig | LauncherPodConfig) -> Manifest:
    """Request equal to limit: if a node lacks memory, the kubelet evicts such pods last."""
    amounts: Manifest = {"cpu": asked.cpu, "memory": asked.memory}
    if isinstance(asked, WorkerPodConfig) and asked.gpus:
        amounts[asked.gpu_resource] = asked.gpus
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _volumes(config: JobConfig, name: str) -> list[Manifest]:
    owned = objects.owned_name(name)
    settings = {"name": owned, "defaultMode": SECRET_MODE}
    volumes: list[Manifest] = [{"name": "edl-config", "configMap": settings}]
    if style_of(config).has_coordinator:
        volumes.append({"name": "edl-secret", "secret": _secret(owned)})
    for volume_name, volume in config.kubernetes.volumes.items():
        if "claim" in volume:
            source: Manifest = {"persistentVolumeClaim": {"claimName": volume["claim"]}}
        elif "secret" in volume:
            source = {"secret": _secret(volume["secret"])}
        else:
            source = {"hostPath": {"path": volume["host_path"]}}
        volumes.append({"name": volume_name, **source})
    return volumes + [{"name": name, "emptyDir": {}} for name in _own_writable(config)]


def _own_writable(config: JobConfig) -> dict[str, str]:
    """Volumes for the writable folders, by name, except where the user has mounted some."""
    mounted = {volume["mount"].rstrip("/") for volume in config.kubernetes.volumes.values()}
    return {name: path for name, path in WRITABLE.items() if path not in mounted}


def _secret(name: str) -> Manifest:
    return {"secretName": name, "defaultMode": SECRET_MODE}


def _template(config: JobConfig, name: str, container: Manifest, **more: Any) -> Manifest:
    """The template of a pod; `more` are keys of its spec, of which empty ones are left out."""
    settings = config.kubernetes
    metadata: Manifest = {"labels": {**texts(settings.labels), **objects.job_labels(name)}}
    if settings.annotations:
        metadata["annotations"] = texts(settings.annotations)
    spec = {
        "containers": [container],
        "volumes": _volumes(config, name),
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        **more,
    }
    filled = {key: value for key, value in spec.items() if value not in ("", [], {})}
    return {"metadata": metadata, "spec": filled}


def _variable(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _secret_variable(name: str, reference: str) -> Manifest:
    secret, _, key = reference.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
