"""What the Job controller of Kubernetes does for a Job of one pod: a test double."""

import itertools
from datetime import UTC, datetime

TRACKING = "batch.kubernetes.io/job-tracking"
"""The finalizer that keeps a pod until the controller has counted how it ended."""
DEFAULT_POLICY = "TerminatingOrFailed"
BACKOFF_SECONDS = 10


def control(cluster, set_status, launcher, pods, *, kubernetes=(1, 36)):
    """Bring a Job nearer to what it wants.

    Args:
        cluster: Its namespace.
        set_status: Takes a resource, a namespace, a name and the status.
        launcher: The Job, as the launcher of an MPIJob is one.
        pods: All pods of the namespace, by name.
        kubernetes: The version.
    """
    meta, spec, status = launcher["metadata"], launcher["spec"], dict(launcher.get("status") or {})
    ours = {key: pod for key, pod in pods.items() if _owner(pod) == meta["uid"]}
    # A pod that is being deleted has failed, or is waited for until it has a last phase.
    takes_deleted = spec.get("podReplacementPolicy", DEFAULT_POLICY) == DEFAULT_POLICY
    is_suspended = spec.get("suspend", False)
    ended = {key: _end(pod, takes_deleted) for key, pod in ours.items()}
    before = dict(status)
    for key, end in ended.items():
        if end and _let_go(cluster, ours[key]) and not is_suspended:
            status[end.lower()] = status.get(end.lower(), 0) + 1
    if any(entry["type"] in ("Complete", "Failed") for entry in status.get("conditions", ())):
        return
    if status.get("succeeded"):
        status["conditions"] = [{"type": "Complete", "status": "True"}]
    elif status.get("failed", 0) > spec["backoffLimit"]:
        message = "Job has reached the specified backoff limit"
        reason = {"reason": "BackoffLimitExceeded", "message": message}
        status["conditions"] = [{"type": "Failed", "status": "True", **reason}]
    elif is_suspended:
        for key, end in ended.items():
            if not end and "deletionTimestamp" not in ours[key]["metadata"]:
                cluster.delete("Pod", key)
        if kubernetes >= (1, 36):  # MutableSchedulingDirectivesForSuspendedJobs
            status.pop("startTime", None)
    else:
        status.setdefault("startTime", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        if all(ended.values()) and _has_backed_off(list(ours.values())):
            cluster.create(_pod(launcher, pods))
    if status != before:
        set_status("jobs.batch", meta["namespace"], meta["name"], status)


def let_orphans_go(cluster, pods):
    """Pods whose Job is gone need not be counted."""
    uids = {job["metadata"]["uid"] for job in cluster.find("Job")}
    for pod in pods.values():
        if TRACKING in pod["metadata"].get("finalizers", ()) and _owner(pod) not in uids:
            _let_go(cluster, pod)


def _owner(pod):
    return next((owner["uid"] for owner in pod["metadata"].get("ownerReferences", ())), "")


def _end(pod, takes_deleted):
    phase = pod["status"].get("phase")
    if phase in ("Succeeded", "Failed"):
        return phase
    return "Failed" if takes_deleted and "deletionTimestamp" in pod["metadata"] else ""


def _let_go(cluster, pod):
    """Whether it was held."""
    meta = pod["metadata"]
    if not meta.get("finalizers"):
        return False
    cluster.patch("Pod", meta["name"], {"metadata": {"finalizers": None}})
    return True


def _has_backed_off(failed):
    """Whether it is time for the next pod: ten seconds after the first failure, then twice."""
    ends = [
        status["state"]["terminated"]["finishedAt"]
        for pod in failed
        for status in pod["status"].get("containerStatuses", ())
    ]
    if not ends:
        return True
    since = datetime.now(UTC) - datetime.fromisoformat(max(ends))
    return since.total_seconds() >= BACKOFF_SECONDS * 2 ** (len(failed) - 1)


def _pod(launcher, pods):
    meta, template = launcher["metadata"], launcher["spec"]["template"]
    numbered = (f"{meta['name']}-{number}" for number in itertools.count())
    name = next(name for name in numbered if name not in pods)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
    owner |= {"name": meta["name"], "uid": meta["uid"]}
    metadata = {"name": name, "finalizers": [TRACKING], "ownerReferences": [owner]}
    metadata = template["metadata"] | metadata
    spec = {**template["spec"], "nodeName": f"node-of-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
