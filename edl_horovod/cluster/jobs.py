"""The life of jobs in a cluster: look at them, and change them, from outside."""

import logging
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import yaml

from edl_horovod.cluster import labels
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.events import EventView, events_of
from edl_horovod.cluster.logs import read_logs
from edl_horovod.cluster.pod_log import events_in
from edl_horovod.cluster.preflight import warn_of_resume
from edl_horovod.cluster.status import ENDED, JobView, view, views
from edl_horovod.cluster.styles import style_of
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator.ring_size import check_change
from edl_horovod.errors import ConfigError, ObjectConflict, ObjectNotFound
from edl_horovod.job.events import Recorded
from edl_horovod.job.state import JobState, summarize

__all__ = ["ClusterJobs"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

LOG_LINES = 2000
"""Of the launcher's log, from which a job's progress is read."""
CONFLICTS = 5
"""Times that a change is tried again which somebody else's change came before."""


class ClusterJobs:
    """The jobs of one namespace; close it, or use it in a `with`.

    All methods raise ClusterError where the cluster refuses or cannot be reached, and
    ObjectNotFound where there is no such job.
    """

    def __init__(self, *, namespace: str = "", context: str = "") -> None:
        """Read the credentials, as kubectl finds them, or those of this pod.

        Args:
            namespace: Of the jobs; empty takes that of the context.
            context: Of the kubeconfig; empty takes the current one.

        Raises:
            NoCluster: None is configured.
        """
        self._cluster = Cluster.connect(context=context, namespace=namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """The namespace that the jobs are in."""
        return self._cluster

    # -- looking

    def find(self, *, all_namespaces: bool = False) -> list[JobView]:
        """The jobs that this package made, by name.

        Args:
            all_namespaces: Not only of this one.
        """
        ours = labels.jobs_selector()
        jobs, pods = (
            self._cluster.find(kind, labels=ours, all_namespaces=all_namespaces)
            for kind in ("MPIJob", "Pod")
        )
        return sorted(views(jobs, pods), key=lambda one: (one.namespace, one.name))

    def status(self, name: str) -> JobView:
        """One job, its pods, and what they wait for.

        Args:
            name: Of the job.
        """
        job = self._job(name)
        pods = self.pods(name)
        seen = view(job, pods)
        # Events are many; they are read only where pods are missing.
        return view(job, pods, self._events(job)) if seen.missing else seen

    def config(self, name: str) -> JobConfig:
        """The settings that a job was submitted with.

        Args:
            name: Of the job.
        """
        self._job(name)  # Where there is none, that is what the error says.
        text = self._cluster.get("ConfigMap", labels.owned_name(name))["data"][resolved.FILE_NAME]
        return resolved.from_dict(yaml.safe_load(text))

    def pods(self, name: str) -> list[Object]:
        """The pods of a job, as the API server has them.

        Args:
            name: Of the job.
        """
        return self._cluster.find("Pod", labels=labels.pods_selector(name))

    def logs(
        self,
        name: str,
        *,
        rank: int | None = None,
        pod: str = "",
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[tuple[str, str]]:
        """What the pods of a job wrote, pod and line, as it comes or pod by pod.

        Args:
            name: Of the job.
            rank: Only the pod that has this rank in the ring now.
            pod: Only this pod.
            follow: Go on until the job, or that pod, has ended; pods that come later are taken in.
            tail: Only so many of the last lines of each.

        Raises:
            ConfigError: The ring has no such rank.
        """
        self._job(name)  # Where there is none, that is what the error says.
        only = pod if rank is None else self._pod_of_rank(name, rank)
        return read_logs(_Pods(self, name), pod=only, follow=follow, tail=tail)

    def events(self, name: str) -> list[EventView]:
        """What Kubernetes says of a job's objects, the oldest first; it forgets after an hour.

        Args:
            name: Of the job.
        """
        return self._events(self._job(name))

    def progress(self, name: str) -> JobState:
        """Where the training is, from the events that the launcher pod shows in its log.

        Args:
            name: Of the job.
        """
        return summarize(self.shown_events(name))

    def shown_events(self, name: str) -> list[Recorded]:
        """The last of the job's own events, as far as the launcher pod shows them in its log.

        Args:
            name: Of the job.
        """
        launchers = self._cluster.find("Pod", labels=labels.pods_selector(name, labels.LAUNCHER))
        if not launchers:
            return []
        newest = max(launchers, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        if (newest.get("status") or {}).get("phase", "Pending") == "Pending":
            return []
        lines = self._cluster.log_lines(newest["metadata"]["name"], tail=LOG_LINES)
        return list(events_in(lines))

    # -- changing

    def scale(self, name: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change how many ranks a job has; those that go leave the ring before they end.

        Args:
            name: Of the job.
            num_ranks: The new number.
            is_dry_run: The server checks it and changes nothing.

        Returns:
            The old number.

        Raises:
            ConfigError: The ring may not have that size, or cannot change.
        """
        config = self.config(name)
        slots = config.kubernetes.slots_per_worker
        _check_size(config, num_ranks)
        pods = num_ranks // slots
        before = 0

        def change(job: Object) -> Object:
            nonlocal before
            _refuse_ended(job, "scaled")
            before = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] * slots
            return {"mpiReplicaSpecs": {"Worker": {"replicas": pods}}}

        self._change(name, change, is_dry_run=is_dry_run)
        return before

    def stop(self, name: str, *, is_dry_run: bool = False) -> None:
        """Have a job write a checkpoint and give all its pods back; `resume` lets it go on.

        Returns at once. The log has a warning where the
        operator lacks the right to resume the job.

        Args:
            name: Of the job.
            is_dry_run: The server checks it and changes nothing.

        Raises:
            ConfigError: The job has ended.
        """
        warn_of_resume(self._cluster, is_dry_run=is_dry_run)
        self._suspend(name, True, is_dry_run=is_dry_run)

    def resume(self, name: str, *, is_dry_run: bool = False) -> None:
        """Let a stopped job, or one that was submitted suspended, go on.

        Args:
            name: Of the job.
            is_dry_run: The server checks it and changes nothing.

        Raises:
            ConfigError: The job has ended.
        """
        self._suspend(name, False, is_dry_run=is_dry_run)

    def delete(self, name: str) -> None:
        """Remove a job and what was made for it; what it wrote to volumes stays.

        Args:
            name: Of the job.
        """
        self._cluster.delete("MPIJob", name, uid=self._job(name)["metadata"]["uid"])

    # -- requests

    def _pod_of_rank(self, name: str, rank: int) -> str:
        members = self.progress(name).members
        if not 0 <= rank < len(members):
            raise ConfigError(
                f"The ring of job {name} has no rank {rank}.",
                received=f"--rank={rank}, and a ring of {len(members)}",
                cure=f"See edl status {name}.",
            )
        return members[rank].partition(".")[0]  # `<pod>.<UID>:<slot>`

    def _events(self, job: Object) -> list[EventView]:
        return events_of(job, self._cluster.find("Event"))

    def _job(self, name: str) -> Object:
        return self._cluster.get("MPIJob", name)

    def _suspend(self, name: str, is_suspended: bool, *, is_dry_run: bool) -> None:
        def change(job: Object) -> Object:
            _refuse_ended(job, "stopped" if is_suspended else "resumed")
            return {"runPolicy": {"suspend": is_suspended}}

        self._change(name, change, is_dry_run=is_dry_run)

    def _change(self, name: str, change: Callable[[Object], Object], *, is_dry_run: bool) -> None:
        """Change a job's spec as it is now; again where somebody else was quicker."""
        for left in reversed(range(CONFLICTS)):
            job = self._job(name)
            version = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}}
            changes = {**version, "spec": change(job)}
            try:
                self._cluster.patch("MPIJob", name, changes, is_dry_run=is_dry_run)
                return
            except ObjectConflict:
                if not left:
                    raise
                log.info("job %s was changed meanwhile; trying again", name)


class _Pods:
    """The pods of one job, for its logs."""

    def __init__(self, jobs: ClusterJobs, job: str) -> None:
        self._jobs, self.job = jobs, job

    def now(self) -> list[Object]:
        return self._jobs.pods(self.job)

    def log_lines(
        self, pod: str, *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        return self._jobs.cluster.log_lines(pod, follow=follow, tail=tail)

    def is_over(self) -> bool:
        try:
            return self._jobs.status(self.job).state in (*ENDED, "suspended")
        except ObjectNotFound:
            return True


def _refuse_ended(job: Object, change: str) -> None:
    now = view(job)
    if now.state in ENDED:
        more = " With the same output and job_dir, a new one goes on from its last checkpoint."
        raise ConfigError(
            f"A job that has ended cannot be {change}. Received: job {now.name} has {now.state}."
            f"{more if now.state == 'failed' else ''}"
        )


def _check_size(config: JobConfig, num_ranks: int) -> None:
    slots = config.kubernetes.slots_per_worker
    if style_of(config).is_static:
        raise ConfigError(
            "A static ring cannot change.",
            received=f"kubernetes.style={config.kubernetes.style}",
            cure="Submit the job with kubernetes.style=elastic to scale it.",
        )
    check_change(config, num_ranks, received=str(num_ranks), step=slots)
