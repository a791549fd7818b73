"""Jobs in a cluster, for the verbs and the client."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from edl_horovod.cluster import causes, logs, objects, pod_log, preflight, styles
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.status import ENDED, JobView, view, views
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_change
from edl_horovod.displays.page.snapshot import DetachedSource, Source, with_task
from edl_horovod.errors import ClusterError, ConfigError, ObjectConflict, ObjectNotFound
from edl_horovod.job.events import Recorded, SummaryEvent
from edl_horovod.job.state import summarize
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine, event_line

log = logging.getLogger(__name__)

Object = dict[str, Any]

LOG_LINES = 2000
"""Lines of the launcher's log from which a job's progress is read."""
PAGE_LINES = 500
"""Lines of a pod's log on the job's page."""
_BY_KUEUE = {
    "scaled": (
        "it would stop all pods and queue the whole job again",
        "Delete the job and submit it again with another launch.np: with the same output and "
        "job_dir it goes on from its last checkpoint.",
    ),
    "stopped": (
        "it would start the job again",
        "Have Kueue stop it: kubectl patch workload NAME --type=merge -p "
        """'{"spec": {"active": false}}', with the name that kubectl get workloads shows. With """
        "true it goes on.",
    ),
    "resumed": (
        "it alone decides when the job goes on",
        "edl status shows what the job waits for.",
    ),
}
"""Why a job in a queue of Kueue cannot be changed so, and a hint, by the change."""
CONFLICTS = 5
"""How often a change is tried if other changes of the object come in between."""
LOOK_SECONDS = 2.0
"""Time between two checks for new events."""
LEAVING_SECONDS = 60.0
"""How long the operator may take to remove pods, in addition to their grace period."""


class KubernetesJobs(Jobs):
    """The jobs of one namespace.

    All methods raise ClusterError if the cluster refuses or cannot be reached, and ObjectNotFound
    if there is no such job.
    """

    def __init__(self, *, namespace: str = "", context: str = "") -> None:
        """Read the credentials, as kubectl finds them, or those of this pod.

        Args:
            namespace: The jobs' namespace; empty for that of the context.
            context: A context of the kubeconfig; empty for the current one.

        Raises:
            NoCluster: None is configured.
        """
        self._cluster = Cluster.connect(context=context, namespace=namespace)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    # -- looking

    def list(self, folders: Sequence[str] = (), *, all_namespaces: bool = False) -> list[JobRow]:
        """List the jobs of this package by name; `num_ready` and `num_wanted` count pods."""
        ours = objects.jobs_selector()
        jobs, pods = (
            self._cluster.find(kind, labels=ours, all_namespaces=all_namespaces)
            for kind in ("MPIJob", "Pod")
        )
        return [
            JobRow(
                job=view.name,
                place=view.namespace,
                state=view.state,
                message=view.message,
                num_ready=view.num_warm,
                num_wanted=view.num_wanted,
                step=None,
                total_steps=0,
                created=view.created,
            )
            for view in sorted(views(jobs, pods), key=lambda view: (view.namespace, view.name))
        ]

    def exists(self, job: str) -> bool:
        """Whether there is such a job."""
        try:
            self._mpijob(job)
        except ObjectNotFound:
            return False
        return True

    def config(self, job: str) -> JobConfig:
        """The settings that the job was submitted with."""
        self._mpijob(job)  # Where there is none, that is what the error says.
        text = self._cluster.get("ConfigMap", objects.owned_name(job))["data"][resolved.FILE_NAME]
        return resolved.from_dict(yaml.safe_load(text))

    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """The job, its pods, what they wait for, and where the training is."""
        view = self._view(job)
        progress = summarize(() if is_brief else self._readable_events(job))
        return JobStatus(
            progress=with_task(progress, lambda: self.config(job)),
            details=view.details(),
            is_at_rest=all(pod.state in ("succeeded", "failed") for pod in view.pods),
        )

    def source(self, job: str) -> Source:
        """The cluster."""
        return DetachedSource(
            job,
            details=lambda: self._view(job).details(),
            events=lambda: self._own_events(job),
            config=lambda: self.config(job),
            log=lambda pod: [
                line.text for line in self.logs(job, pod, follow=False, tail=PAGE_LINES)
            ],
        )

    def logs(self, job: str, worker: str, *, follow: bool, tail: int | None) -> Iterator[LogLine]:
        """What the pods wrote, as it comes or pod by pod."""
        self._mpijob(job)  # Where there is none, that is what the error says.
        pod = worker.partition(".")[0]  # A member of a ring is called `<pod>.<UID>:<slot>`.

        def is_over() -> bool:
            try:
                return self._view(job).state in (*ENDED, "suspended")
            except ObjectNotFound:
                return True

        ending = is_over if follow else None
        lines = logs.read_logs(self._cluster, job, only=pod, tail=tail, is_over=ending)
        return (LogLine(name, text) for name, text in lines)

    def recorded(self, job: str) -> Iterable[Recorded]:
        """The last of the job's own events, from the log of its launcher."""
        self._mpijob(job)  # Where there is none, that is what the error says.
        return self._readable_events(job)

    def events(self, job: str, *, follow: bool = False) -> Iterator[EventLine]:
        """The last of the job's own events, and what Kubernetes says of its objects."""
        seen: set[tuple[object, ...]] = set()
        while True:
            state = self._view(job).state
            recorded = self._readable_events(job)
            lines = [event_line(it) for it in recorded if not isinstance(it.event, SummaryEvent)]
            lines += [
                EventLine(
                    time=causes.seconds_of(event.time),
                    origin="kubernetes",
                    kind=event.kind,
                    source=event.object,
                    text=event.text,
                )
                for event in causes.events_of(self._mpijob(job), self._cluster.find("Event"))
            ]
            for line in sorted(lines, key=lambda line: line.time):
                key = (line.time, line.origin, line.kind, line.source, line.text)
                if key not in seen:
                    seen.add(key)
                    yield line
            if not follow or state in (*ENDED, "suspended"):
                return
            time.sleep(LOOK_SECONDS)

    # -- changing

    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change the number of ranks, by that of the worker pods."""
        config = self.config(job)
        slots = config.kubernetes.slots_per_worker
        if styles.style_of(config).is_static:
            raise ConfigError(
                "A static ring cannot change.",
                received={"kubernetes.style": config.kubernetes.style},
                hint="Submit the job with kubernetes.style=elastic to scale it.",
            )
        check_change(config, num_ranks, received=str(num_ranks), step=slots)
        workers = {"Worker": {"replicas": num_ranks // slots}}
        before = self._change(job, {"mpiReplicaSpecs": workers}, "scaled", is_dry_run=is_dry_run)
        num_pods: int = before["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        return num_pods * slots

    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Suspend the MPIJob; logs a warning if the operator may be unable to resume it."""
        config = self.config(job)
        self.warn_of_stop(job, config, saves=styles.style_of(config).has_coordinator)
        preflight.warn_of_resume(self._cluster, job=job, is_dry_run=is_dry_run)
        self._change(job, {"runPolicy": {"suspend": True}}, "stopped", is_dry_run=is_dry_run)

    def stop_seconds(self, job: str) -> float:
        """The grace period of the pods, and the time that the operator takes."""
        return self.config(job).kubernetes.grace_seconds + LEAVING_SECONDS

    def resume(self, job: str, *, is_dry_run: bool = False, **_: object) -> None:
        """Continue the job in the cluster; returns at once."""
        self._change(job, {"runPolicy": {"suspend": False}}, "resumed", is_dry_run=is_dry_run)

    def delete(self, job: str, *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove the MPIJob and the objects that it owns; files on volumes are kept."""
        uid = self._mpijob(job)["metadata"]["uid"]
        if not is_dry_run:
            self._cluster.delete("MPIJob", job, uid=uid)
        return [f"mpijob/{job}"]

    # -- requests

    def _mpijob(self, job: str) -> Object:
        return self._cluster.get("MPIJob", job)

    def _view(self, job: str) -> JobView:
        mpijob = self._mpijob(job)
        pods = self._cluster.find("Pod", labels=objects.pods_selector(job))
        seen = view(mpijob, pods)
        if not seen.missing:
            return seen
        # There are many events, so they are read only if pods are missing.
        return view(mpijob, pods, causes.events_of(mpijob, self._cluster.find("Event")))

    def _own_events(self, job: str) -> Sequence[Recorded]:
        """The last events of the job, from the log of its newest launcher pod."""
        launchers = self._cluster.find("Pod", labels=objects.pods_selector(job, objects.LAUNCHER))
        if not launchers:
            return []
        newest = max(launchers, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        if (newest.get("status") or {}).get("phase", "Pending") == "Pending":
            return []
        lines = self._cluster.log_lines(newest["metadata"]["name"], tail=LOG_LINES)
        return list(pod_log.events_in(lines))

    def _readable_events(self, job: str) -> Sequence[Recorded]:
        try:
            return self._own_events(job)
        except ClusterError as error:
            # The log may be forbidden, or lost with its node. State and pods can be shown anyway.
            log.warning("Step, loss and ring, the job's own events, cannot be read: %s", error)
            return []

    def _change(self, job: str, spec: Object, change: str, *, is_dry_run: bool) -> Object:
        """Change a job's spec, again after a conflict; returns the job as it was before."""
        for left in reversed(range(CONFLICTS)):
            before = self._mpijob(job)
            state = view(before).state
            if state in ENDED:
                raise ConfigError(
                    f"A job that has ended cannot be {change}.",
                    received=f"job {job} has {state}",
                    hint="With the same output and job_dir, a new one goes on from its last "
                    "checkpoint."
                    if state == "failed"
                    else "",
                )
            if queue := objects.queue_of(before["metadata"].get("labels") or {}):
                why, hint = _BY_KUEUE[change]
                raise ConfigError(
                    f"A job in a queue of Kueue cannot be {change} yet: {why}.",
                    received=f"job {job} in queue {queue}",
                    hint=hint,
                )
            version = {"resourceVersion": before["metadata"]["resourceVersion"]}
            try:
                changes = {"metadata": version, "spec": spec}
                self._cluster.patch("MPIJob", job, changes, is_dry_run=is_dry_run)
                break
            except ObjectConflict:
                if not left:
                    raise
                log.info("job %s was changed at the same time; trying again", job)
        return before
