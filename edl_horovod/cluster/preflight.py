"""What a cluster must be able to do for a job, found out before the job is sent there."""

import logging
import re

from edl_horovod.cluster.client import Cluster
from edl_horovod.errors import ClusterError, ClusterForbidden

__all__ = ["OLDEST_KUBERNETES", "check_version"]

log = logging.getLogger(__name__)

OLDEST_KUBERNETES = (1, 24)
"""The first version in which the Job of a launcher can be suspended whatever feature gates say."""


def check_version(cluster: Cluster) -> None:
    """Refuse a cluster that is too old to carry jobs.

    Args:
        cluster: Any namespace of it.

    Raises:
        ClusterError: Its Kubernetes is too old, or it cannot be asked.
    """
    try:
        said = cluster.server_version()
    except ClusterForbidden as error:
        log.debug("the version of Kubernetes is not known: %s", error)
        return
    found = re.match(r"v(\d+)\.(\d+)", said)
    if found is not None and tuple(map(int, found.groups())) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise ClusterError(
            f"Kubernetes {oldest} is the oldest version that can carry a job: older ones cannot "
            f"suspend the launcher. Received: {cluster.server} runs Kubernetes {said}. Have the "
            "cluster upgraded, or choose another context."
        )
