"""What a cluster must be able to do for a job, found out before the job is sent there."""

import logging
import re

from edl_horovod.cluster.causes import GRANT
from edl_horovod.cluster.client import Cluster
from edl_horovod.errors import ClusterError, ClusterForbidden, ObjectNotFound

__all__ = ["OLDEST_KUBERNETES", "check_version", "warn_of_resume"]

log = logging.getLogger(__name__)

OLDEST_KUBERNETES = (1, 24)
"""The first version in which the Job of a launcher can be suspended whatever feature gates say."""
_REMOVES_START_TIME = (1, 36)
"""The first version whose Job controller removes the start time of a Job that is suspended."""
_OPERATOR_NAMESPACES = ("mpi-operator", "kubeflow")
"""Where the operator's own manifests put it: alone, and as a part of Kubeflow."""


def check_version(cluster: Cluster) -> None:
    """Refuse a cluster that is too old to carry jobs.

    Raises:
        ClusterError: Its Kubernetes is too old, or it cannot be asked.
    """
    version, said = _version(cluster)
    if version is not None and version < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise ClusterError(
            f"Kubernetes {oldest} is the oldest version that can carry a job: older ones cannot"
            " suspend the launcher.",
            received=f"{cluster.server} runs Kubernetes {said}",
            hint="Have the cluster upgraded, or choose another context.",
        )


def warn_of_resume(cluster: Cluster, *, job: str = "", is_dry_run: bool) -> None:
    """Say in the log where a job that is stopped could not be resumed.

    To resume a launcher that has run before, mpi-operator removes the start time from the status of
    its Job. The ClusterRole in its own manifests does not allow that
    (https://github.com/kubeflow/mpi-operator/blob/v0.8.2/manifests/base/cluster-role.yaml). It need
    not do so where Kubernetes has removed that time already, and 0.8.0 goes on without.

    Args:
        cluster: The namespace of the job.
        job: Its name, if it exists already.
        is_dry_run: Say also where this cannot be found out.
    """
    try:
        version, _ = _version(cluster)
        if version is not None and version >= _REMOVES_START_TIME:
            return
        for home in _OPERATOR_NAMESPACES:
            # An account that may not even update Jobs is none of an operator that works here.
            if not _may_update(cluster, home):
                continue
            if not _may_update(cluster, home, "status") and not _goes_on_without(cluster, job):
                log.warning(
                    "mpi-operator 0.8.1 and later cannot resume a job here once it was stopped: %s "
                    "may not update jobs.batch/status in namespace %s. %s",
                    _account(home),
                    cluster.namespace,
                    GRANT,
                )
            return
        why = "None of its usual service accounts may update Jobs in this namespace."
    except ClusterError as error:  # A check alone does not keep a job from being stopped.
        why = str(error)
    if is_dry_run:
        log.warning(
            "Whether mpi-operator can resume a job that was stopped could not be checked: %s Below "
            "Kubernetes 1.36, release 0.8.1 and later need a right for it. An administrator can "
            "check it: kubectl auth can-i update jobs.batch --subresource=status --as=%s -n %s",
            why,
            _account(_OPERATOR_NAMESPACES[0]),
            cluster.namespace,
        )


def _version(cluster: Cluster) -> tuple[tuple[int, ...] | None, str]:
    """The version of Kubernetes, None where it is not known, and as the server says it."""
    try:
        said = cluster.server_version()
    except ClusterForbidden as error:
        log.debug("the version of Kubernetes is not known: %s", error)
        return None, ""
    match = re.match(r"v(\d+)\.(\d+)", said)
    return (tuple(map(int, match.groups())) if match else None), said


def _goes_on_without(cluster: Cluster, job: str) -> bool:
    """Whether the operator is one that resumes a launcher without the right, as far as is known.

    Releases that do not are the ones that wait for a launcher pod's last phase.
    """
    try:
        launcher = cluster.get("Job", f"{job}-launcher") if job else {}
    except (ClusterForbidden, ObjectNotFound) as error:
        log.debug("the release of mpi-operator is not known: %s", error)
        return False
    policy = launcher.get("spec", {}).get("podReplacementPolicy")
    return policy not in (None, "Failed")


def _account(home: str) -> str:
    return f"system:serviceaccount:{home}:mpi-operator"


def _may_update(cluster: Cluster, home: str, subresource: str = "") -> bool:
    """Whether the operator of that namespace may update Jobs, or a part of them, in ours."""
    asked = {
        "namespace": cluster.namespace,
        "verb": "update",
        "group": "batch",
        "resource": "jobs",
        "subresource": subresource,
    }
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{home}"]
    spec = {"user": _account(home), "groups": groups, "resourceAttributes": asked}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": cluster.namespace},
        "spec": spec,
    }
    return bool(cluster.create(review)["status"]["allowed"])
