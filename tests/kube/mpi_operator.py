"""What mpi-operator 0.8 does for one MPIJob, as far as our three styles need it: a test double."""

import base64
import contextlib
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from kubernetes import client as k8s

from edl_horovod.errors import ObjectConflict, ObjectNotFound

OPEN_MPI = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
DEFAULT_SSH = "/root/.ssh"
"""Where nobody of ours looks: then neither the key nor ssh-keygen is needed."""
SSH_FILES = {"id_rsa": "ssh-privatekey", "id_rsa.pub": "ssh-publickey"}
SSH_FILES["authorized_keys"] = SSH_FILES["id_rsa.pub"]


def operate(cluster, batch, job, pods, *, release="0.8.2"):
    """Bring the objects of a job nearer to what it wants.

    Args:
        cluster: Its namespace.
        batch: The same with the official client, which can change the status of a Job.
        job: The MPIJob.
        pods: All pods of the namespace, by name.
        release: Of the operator.
    """
    spec, name = job["spec"], job["metadata"]["name"]
    launcher = _launcher(cluster, name)
    workers = {key: pod for key, pod in pods.items() if key.startswith(f"{name}-worker-")}
    is_suspended = bool(spec["runPolicy"].get("suspend"))
    if launcher is None:
        # Jobs of ours are created suspended: then the launcher's Job is made, whatever
        # launcherCreationPolicy says, since all of no workers are ready.
        launcher = cluster.create(_launcher_job(job, release, is_suspended=is_suspended))
    if is_suspended or _is_finished(launcher):
        _delete(cluster, workers)
        if is_suspended and not launcher["spec"]["suspend"]:
            cluster.patch("Job", f"{name}-launcher", {"spec": {"suspend": True}})
        return
    if not workers:
        _create_parts(cluster, job)
    replicas = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    wanted = [f"{name}-worker-{index}" for index in range(replicas)]
    for pod_name in wanted:
        if pod_name not in workers:
            cluster.create(pod_of(job, "Worker", pod_name))
    _delete(cluster, {key: pod for key, pod in workers.items() if key not in wanted})
    if launcher["spec"]["suspend"]:
        _resume(cluster, batch, launcher, release)


def _launcher(cluster, job):
    try:
        return cluster.get("Job", f"{job}-launcher")
    except ObjectNotFound:
        return None


def _is_finished(launcher):
    conditions = (launcher.get("status") or {}).get("conditions", ())
    return any(condition["type"] in ("Complete", "Failed") for condition in conditions)


def _resume(cluster, batch, launcher, release):
    """The template of a Job that has a start time may not change, so the operator removes that.

    Its own ClusterRole does not let it. Release 0.8.0 removes it first from its own cache, sees
    nothing to remove when it tries again, and goes on; 0.8.1 and later try for ever.
    """
    meta = launcher["metadata"]
    if (launcher.get("status") or {}).get("startTime"):
        changes = {"status": {"startTime": None}}
        try:
            batch.patch_namespaced_job_status(meta["name"], meta["namespace"], changes)
        except k8s.ApiException as error:
            if error.status != 403:
                raise
            if release != "0.8.0":
                return
    cluster.patch("Job", meta["name"], {"spec": {"suspend": False}})


def _delete(cluster, pods):
    for pod_name, pod in pods.items():
        if "deletionTimestamp" not in pod["metadata"]:
            cluster.delete("Pod", pod_name)


def _labels(job):
    prefix, name = "training.kubeflow.org", job["metadata"]["name"]
    return {f"{prefix}/operator-name": "mpi-operator", f"{prefix}/job-name": name}


def _owned(job, api_version, kind, name, **content):
    meta = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": "MPIJob", "controller": True}
    owner |= {"name": meta["name"], "uid": meta["uid"]}
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


def _launcher_job(job, release, *, is_suspended):
    # 0.8.0 leaves the policy out, and the API server takes its default.
    policy = "TerminatingOrFailed" if release == "0.8.0" else "Failed"
    spec = {
        "backoffLimit": job["spec"]["runPolicy"]["backoffLimit"],
        "podReplacementPolicy": policy,
        "suspend": is_suspended,
        "template": _template(job, "Launcher", hostname=f"{job['metadata']['name']}-launcher"),
    }
    return _owned(job, "batch/v1", "Job", f"{job['metadata']['name']}-launcher", spec=spec)


def pod_of(job, role, pod_name):
    """The manifest of a pod, on a node of its own."""
    template = _template(job, role, hostname=pod_name)
    pod = _owned(job, "v1", "Pod", pod_name, spec=template["spec"])
    pod["metadata"]["labels"] = template["metadata"]["labels"]
    pod["spec"]["nodeName"] = f"node-of-{pod_name}"
    return pod


def _template(job, role, *, hostname):
    replica = job["spec"]["mpiReplicaSpecs"][role]
    template = replica["template"]
    name = job["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    volumes, mounts, variables = [], [], {}
    if _ssh_path(job) != DEFAULT_SSH:
        files = [{"key": key, "path": path} for path, key in SSH_FILES.items()]
        secret = {"secretName": f"{name}-ssh", "items": files}
        volumes.append({"name": "ssh-auth", "secret": secret})
        mounts.append({"name": "ssh-auth", "mountPath": _ssh_path(job)})
    if role == "Launcher":
        volumes.append({"name": "mpi-job-config", "configMap": {"name": f"{name}-config"}})
        mounts.append({"name": "mpi-job-config", "mountPath": "/etc/mpi"})
        slots = str(job["spec"]["slotsPerWorker"])
        variables = {**OPEN_MPI, "OMPI_MCA_orte_set_default_slots": slots}
    env = [{"name": key, "value": text} for key, text in variables.items()]
    container = {
        **container,
        "env": [*container["env"], *env],
        "volumeMounts": [*container["volumeMounts"], *mounts],
    }
    labels = {
        **template["metadata"]["labels"],
        **_labels(job),
        "training.kubeflow.org/job-role": role.lower(),
    }
    spec = {
        **template["spec"],
        "restartPolicy": replica["restartPolicy"],
        "containers": [container],
        "volumes": [*template["spec"]["volumes"], *volumes],
        "hostname": hostname,
        "subdomain": name,
    }
    return {"metadata": {"labels": labels}, "spec": spec}
