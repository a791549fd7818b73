"""Jobs in a cluster, as the verbs and the client see and change them."""

import logging
import time
from collections.abc import Iterator, Sequence

from edl_horovod.cluster.events import seconds_of
from edl_horovod.cluster.jobs import ClusterJobs
from edl_horovod.cluster.status import ENDED
from edl_horovod.config.tasks import TASKS
from edl_horovod.displays.page.sources import ClusterSource, Source
from edl_horovod.errors import ClusterError, ObjectNotFound
from edl_horovod.job.events import OnEvents, Recorded
from edl_horovod.job.state import JobState
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine
from edl_horovod.launch.local_jobs import event_line

__all__ = ["KubernetesJobs"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks for new events."""
LEAVING_SECONDS = 60.0
"""Beyond the grace of the pods, until the operator has removed them."""


class KubernetesJobs(Jobs):
    """The jobs of one namespace."""

    def __init__(self, *, namespace: str = "", context: str = "") -> None:
        """Read the credentials, as kubectl finds them, or those of this pod.

        Args:
            namespace: Of the jobs; empty takes that of the context.
            context: Of the kubeconfig; empty takes the current one.

        Raises:
            NoCluster: None is configured.
        """
        self._jobs = ClusterJobs(namespace=namespace, context=context)

    def close(self) -> None:
        """Close the connections."""
        self._jobs.close()

    def list(self, *, all_namespaces: bool = False) -> list[JobRow]:
        """The jobs that this package made, by name.

        Args:
            all_namespaces: Not only of this one.
        """
        return [
            JobRow(
                job=view.name,
                namespace=view.namespace,
                state=view.state,
                message=view.message,
                num_ready=view.num_warm,
                num_wanted=view.num_wanted,
                step=None,
                total_steps=0,
                created=view.created,
            )
            for view in self._jobs.find(all_namespaces=all_namespaces)
        ]

    def exists(self, job: str) -> bool:
        """Whether there is such a job."""
        try:
            self._jobs.status(job)
        except ObjectNotFound:
            return False
        return True

    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """The job, its pods, what they wait for, and where the training is."""
        view = self._jobs.status(job)
        return JobStatus(
            progress=JobState() if is_brief else self._progress(job),
            in_cluster=view,
            is_at_rest=all(pod.state in ("succeeded", "failed") for pod in view.pods),
        )

    def source(self, job: str) -> Source:
        """The cluster."""
        return ClusterSource(self._jobs, job)

    def logs(
        self,
        job: str,
        *,
        rank: int | None = None,
        worker: str = "",
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """What the pods wrote."""
        for pod, text in self._jobs.logs(job, rank=rank, pod=worker, follow=follow, tail=tail):
            yield LogLine(pod, text)

    def events(self, job: str, *, follow: bool = False) -> Iterator[EventLine]:
        """The last of the job's own events, and what Kubernetes says of its objects."""
        seen: set[tuple[object, ...]] = set()
        while True:
            view = self._jobs.status(job)
            found = [event_line(event) for event in self._shown_events(job)]
            found += [
                EventLine(
                    time=seconds_of(event.time),
                    origin="kubernetes",
                    kind=event.kind,
                    source=event.object,
                    text=event.text,
                )
                for event in self._jobs.events(job)
            ]
            for line in sorted(found, key=lambda line: line.time):
                key = (line.time, line.origin, line.kind, line.source, line.text)
                if key not in seen:
                    seen.add(key)
                    yield line
            if not follow or view.state in (*ENDED, "suspended"):
                return
            time.sleep(LOOK_SECONDS)

    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change how many ranks the job has; those that go leave the ring before they end."""
        return self._jobs.scale(job, num_ranks, is_dry_run=is_dry_run)

    def loss_at_stop(self, job: str) -> str:
        """What a stop would lose."""
        config = self._jobs.config(job)
        if not TASKS[config.task].keeps_state or config.checkpoint.is_on:
            return ""
        return (
            f"Job {job} saves no checkpoints (checkpoint.every_steps=0, "
            "checkpoint.every_seconds=0), so it would begin again."
        )

    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Suspend the MPIJob."""
        self._jobs.stop(job, is_dry_run=is_dry_run)

    def stop_seconds(self, job: str) -> float:
        """The grace of the pods, and what the operator takes."""
        return self._jobs.config(job).kubernetes.grace_seconds + LEAVING_SECONDS

    def resume(
        self, job: str, *, is_dry_run: bool = False, on_events: OnEvents | None = None
    ) -> None:
        """Let the job go on in the cluster; returns at once."""
        self._jobs.resume(job, is_dry_run=is_dry_run)

    def delete(self, job: str, *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove the MPIJob and what it owns; what it wrote to volumes stays."""
        name = self._jobs.status(job).name
        if not is_dry_run:
            self._jobs.delete(job)
        return [f"mpijob/{name}"]

    def _progress(self, job: str) -> JobState:
        try:
            return self._jobs.progress(job)
        except ClusterError as error:
            # State and pods are known all the same; a log may be forbidden, or gone with its node.
            log.warning("Step, loss and ring cannot be read: %s", error)
            return JobState()

    def _shown_events(self, job: str) -> Sequence[Recorded]:
        try:
            return self._jobs.shown_events(job)
        except ClusterError as error:
            log.warning("The job's own events cannot be read: %s", error)
            return []
