"""What mpi-operator 0.8 does for one MPIJob, as far as our three styles need it: a test double."""

import base64
import contextlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from edl_horovod.errors import ObjectConflict

OPEN_MPI = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
BACKOFF_SECONDS = 10
DEFAULT_SSH = "/root/.ssh"
"""Where nobody of ours looks: then neither the key nor ssh-keygen is needed."""
SSH_FILES = {"id_rsa": "ssh-privatekey", "id_rsa.pub": "ssh-publickey"}
SSH_FILES["authorized_keys"] = SSH_FILES["id_rsa.pub"]


def operate(cluster, job, pods):
    """Bring the pods of a job nearer to what it wants.

    Args:
        cluster: Its namespace.
        job: The MPIJob.
        pods: All pods of the namespace, by name.
    """
    spec, name = job["spec"], job["metadata"]["name"]
    launchers = [pod for key, pod in pods.items() if key.startswith(f"{name}-launcher-")]
    workers = {key: pod for key, pod in pods.items() if key.startswith(f"{name}-worker-")}
    phases = [pod["status"].get("phase") for pod in launchers]
    is_over = "Succeeded" in phases or phases.count("Failed") > spec["runPolicy"]["backoffLimit"]
    if spec["runPolicy"]["suspend"] or is_over:
        _delete(cluster, workers)
        return
    if not workers:
        _create_parts(cluster, job)
    replicas = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    wanted = [f"{name}-worker-{index}" for index in range(replicas)]
    for pod_name in wanted:
        if pod_name not in workers:
            _create_pod(cluster, job, "Worker", pod_name, hostname=pod_name)
    _delete(cluster, {key: pod for key, pod in workers.items() if key not in wanted})
    # Jobs of ours are created suspended: then the launcher's Job is made, whatever
    # launcherCreationPolicy says, since all of no workers are ready. Once it is released it makes
    # its first pod, and another one after one that failed, whatever the workers do.
    if phases.count("Failed") == len(phases) and (not launchers or _has_backed_off(launchers)):
        pod_name = f"{name}-launcher-{len(phases)}"
        _create_pod(cluster, job, "Launcher", pod_name, hostname=f"{name}-launcher")


def _has_backed_off(failed):
    """Whether a Job would make the next pod: ten seconds after the first failure, then twice."""
    ends = [
        status["state"]["terminated"]["finishedAt"]
        for pod in failed
        for status in pod["status"].get("containerStatuses", ())
    ]
    if not ends:
        return True
    since = datetime.now(UTC) - datetime.fromisoformat(max(ends))
    return since.total_seconds() >= BACKOFF_SECONDS * 2 ** (len(failed) - 1)


def _delete(cluster, pods):
    for pod_name, pod in pods.items():
        if "deletionTimestamp" not in pod["metadata"]:
            cluster.delete("Pod", pod_name)


def _labels(job):
    name = job["metadata"]["name"]
    return {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": name,
    }


def _owned(job, api_version, kind, name, **content):
    meta = job["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": "MPIJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    metadata = {"name": name, "ownerReferences": [owner]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def _create_parts(cluster, job):
    """The Service by whose name pods are found, the hosts of mpirun, and the key of ssh."""
    spec, name = job["spec"], job["metadata"]["name"]
    lines = "".join(
        f"{name}-worker-{index}.{name}.default.svc slots={spec['slotsPerWorker']}\n"
        for index in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    )
    service = {"clusterIP": "None", "selector": _labels(job), "publishNotReadyAddresses": True}
    parts = [
        _owned(job, "v1", "Service", name, spec=service),
        _owned(job, "v1", "ConfigMap", f"{name}-config", data={"hostfile": lines}),
    ]
    if _ssh_path(job) != DEFAULT_SSH:
        kind = "kubernetes.io/ssh-auth"
        parts.append(_owned(job, "v1", "Secret", f"{name}-ssh", type=kind, data=_key()))
    for part in parts:
        with contextlib.suppress(ObjectConflict):  # Made for the pods before these.
            cluster.create(part)


def _ssh_path(job):
    return job["spec"].get("sshAuthMountPath", DEFAULT_SSH)


def _key():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        kind = ["-t", "ecdsa", "-b", "521", "-m", "PEM"]
        subprocess.run(["ssh-keygen", "-q", *kind, "-N", "", "-f", str(path)], check=True)
        files = {"ssh-privatekey": path, "ssh-publickey": path.with_suffix(".pub")}
        return {key: base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}


def _create_pod(cluster, job, role, pod_name, *, hostname):
    replica = job["spec"]["mpiReplicaSpecs"][role]
    template = replica["template"]
    name = job["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    volumes, mounts, variables = [], [], {}
    if _ssh_path(job) != DEFAULT_SSH:
        items = [{"key": key, "path": path} for path, key in SSH_FILES.items()]
        secret = {"secretName": f"{name}-ssh", "items": items}
        volumes.append({"name": "ssh-auth", "secret": secret})
        mounts.append({"name": "ssh-auth", "mountPath": _ssh_path(job)})
    if role == "Launcher":
        volumes.append({"name": "mpi-job-config", "configMap": {"name": f"{name}-config"}})
        mounts.append({"name": "mpi-job-config", "mountPath": "/etc/mpi"})
        slots = str(job["spec"]["slotsPerWorker"])
        variables = {**OPEN_MPI, "OMPI_MCA_orte_set_default_slots": slots}
    env = [{"name": key, "value": value} for key, value in variables.items()]
    container = {
        **container,
        "env": [*container["env"], *env],
        "volumeMounts": [*container["volumeMounts"], *mounts],
    }
    spec = {
        **template["spec"],
        "restartPolicy": replica["restartPolicy"],
        "containers": [container],
        "volumes": [*template["spec"]["volumes"], *volumes],
        "nodeName": f"node-of-{pod_name}",
        "hostname": hostname,
        "subdomain": name,
    }
    pod = _owned(job, "v1", "Pod", pod_name, spec=spec)
    pod["metadata"]["labels"] = {
        **template["metadata"]["labels"],
        **_labels(job),
        "training.kubeflow.org/job-role": role.lower(),
    }
    cluster.create(pod)
