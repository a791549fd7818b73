"""The client for jobs on this machine and in clusters: list, watch, wait for and change them."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from edl_horovod.displays.page.snapshot import Source
from edl_horovod.errors import ConfigError, MissingDependency, NoCluster
from edl_horovod.job.events import OnEvents, Recorded
from edl_horovod.launch import target, waiting
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine, OnStatus
from edl_horovod.supervisor.run import JobResult

if TYPE_CHECKING:
    from edl_horovod.displays.page.folder import ListedJob, ListJobs
    from edl_horovod.displays.page.server import Dashboard

Name = str | os.PathLike[str]
"""The directory of a job on this machine, or the name of one in a cluster."""


class Client:
    """Finds jobs by their names; close it, or use it in a `with`.

    A job on this machine is named by its directory, a job in a cluster by its name. A name that is
    the directory of a job, or that no job in a cluster can have, means a job on this machine. All
    methods raise EdlErrors.
    """

    def __init__(self, **place: str) -> None:
        """Prepare; a cluster is contacted only when a method names a job in it.

        Args:
            **place: Where jobs in a cluster are: the `place_keys` of their launch target, such as
                `namespace` and `context` for Kubernetes. An empty text means the default.

        Raises:
            ConfigError: No launch target knows such a keyword.
        """
        self._place = {key: value for key, value in place.items() if value}
        targets = target.TARGETS.loaded().values() if self._place else ()
        known = {key for make in targets for key in make().place_keys}
        if unknown := self._place.keys() - known:
            raise ConfigError(
                "No launch target has such a keyword.",
                received=", ".join(sorted(unknown)),
                hint=f"Known are {', '.join(sorted(known))}.",
            )
        self._opened: dict[str, Jobs] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        while self._opened:
            self._opened.popitem()[1].close()

    # -- looking

    def list(
        self, folders: Sequence[Name] | None = None, *, all_namespaces: bool = False
    ) -> list[JobRow]:
        """List the jobs on this machine or in clusters.

        Args:
            folders: Folders of this machine, searched up to three levels deep; None to list the
                jobs in clusters.
            all_namespaces: Whether to list the jobs in all namespaces of the cluster.
        """
        paths = [os.fspath(folder) for folder in folders or ()]
        rows: list[JobRow] = []
        missing: list[NoCluster] = []
        opened = self._open_all(are_detached=folders is None).values()
        for jobs in opened:
            try:
                rows += jobs.list(paths, all_namespaces=all_namespaces)
            except NoCluster as error:  # The commands of Slurm are here, but no Slurm.
                missing.append(error)
        if missing and len(missing) == len(opened):
            raise missing[-1]
        return rows

    def status(self, job: Name, *, is_brief: bool = False) -> JobStatus:
        """Return the state and progress of a job, and what it waits for.

        Args:
            job: Its directory or its name.
            is_brief: Whether to leave out the progress of a job in a cluster, which is read from
                the log of a pod.
        """
        jobs, name = self._find(job)
        return jobs.status(name, is_brief=is_brief)

    def logs(
        self,
        job: Name,
        *,
        rank: int | None = None,
        worker: str = "",
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield the log lines of a job's processes, log by log, or as they are written.

        Args:
            job: Its directory or its name.
            rank: Only the worker that has this rank in the present ring.
            worker: Only this pod; on this machine, only this worker or process.
            follow: Whether to continue until the job, or that pod, has ended.
            tail: Number of last lines of each log; None for all.

        Raises:
            ConfigError: There is no such rank or worker.
        """
        jobs, name = self._find(job)
        only = worker if rank is None else jobs.member(name, rank)
        return jobs.logs(name, only, follow=follow, tail=tail)

    def events(self, job: Name, *, follow: bool = False) -> Iterator[EventLine]:
        """Yield the events of a job, the oldest first.

        In a cluster these are the last events in the log of the job's launcher, and Kubernetes' own
        events about the job's objects, which are kept for an hour.

        Args:
            job: Its directory or its name.
            follow: Whether to continue until the job has ended.
        """
        jobs, name = self._find(job)
        return jobs.events(name, follow=follow)

    def recorded(self, job: Name) -> Iterable[Recorded]:
        """Give what edl itself has written about a job, the oldest first; see `events`."""
        jobs, name = self._find(job)
        return jobs.recorded(name)

    def source(self, job: Name) -> Source:
        """Open a job for displays that look at it again and again; it may also start later."""
        jobs, name = self._find(job)
        return jobs.source(name)

    def dashboard(
        self, job: Name | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> "Dashboard":
        """Open a dashboard, listening at `url`; the caller calls its `serve()` and closes it.

        Args:
            job: The directory or the name of a job, or a folder with jobs; None for all jobs below
                the current folder and in clusters.
            host: Address to listen on.
            port: Port to listen on; 0 for any free one.

        Raises:
            ConfigError: The address cannot be used.
            MissingDependency: The packages of the dashboard are not installed.
        """
        from edl_horovod.displays.page.server import Dashboard
        from edl_horovod.launch.local_jobs import folder_of

        elsewhere = self._elsewhere() if job is None else None
        path = os.curdir if job is None else os.fspath(job)
        shown = folder_of(path, elsewhere) or self.source(path)
        return Dashboard(shown, host=host, port=port)

    def is_here(self, job: Name) -> bool:
        """Whether a job is on this machine."""
        return not target.find(self._kind(os.fspath(job))).is_detached

    # -- waiting

    def wait(
        self,
        job: Name,
        condition: str = "finished",
        *,
        timeout_seconds: float | None = None,
        on_status: OnStatus | None = None,
    ) -> JobStatus | None:
        """Wait until a job reaches a state; a job that does not exist yet has 30 seconds to start.

        Args:
            job: Its directory or its name.
            condition: `running`, `finished`, `ended` (also by a failure) or `deleted`.
            timeout_seconds: Longest wait; None for no limit.
            on_status: Called with the job's status every second.

        Returns:
            The status; None once the job is deleted.

        Raises:
            ConfigError: There is no such condition, or no such job after 30 seconds.
            JobFailed: The job failed, and so cannot reach the state.
            TimedOut: It took longer.
        """
        name, limit = os.fspath(job), timeout_seconds
        return waiting.wait(
            lambda: self._find(name)[0], name, condition, timeout_seconds=limit, on_status=on_status
        )

    # -- changing

    def scale(self, job: Name, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change the number of ranks of a running job; ranks leave the ring before they end.

        Args:
            job: Its directory or its name.
            num_ranks: The new number; for a job on this machine, the number on this machine.
            is_dry_run: Whether to only check that this is possible.

        Returns:
            The old number.

        Raises:
            ConfigError: The ring may not have that size, or cannot change.
        """
        jobs, name = self._find(job)
        return jobs.scale(name, num_ranks, is_dry_run=is_dry_run)

    def loss_at_stop(self, job: Name) -> str:
        """What `stop` would lose, as a sentence; empty if checkpoints keep the state."""
        jobs, name = self._find(job)
        return jobs.loss_at_stop(name)

    def stop(
        self,
        job: Name,
        *,
        may_lose_steps: bool = False,
        is_dry_run: bool = False,
        wait: bool = True,
        on_status: OnStatus | None = None,
    ) -> None:
        """Save a checkpoint of a job and end its processes or pods; `resume` continues it.

        Args:
            job: Its directory or its name.
            may_lose_steps: Whether to also stop a job that saves no checkpoints.
            is_dry_run: Whether to only check that this is possible.
            wait: Whether to return only when no process or pod of the job is left.
            on_status: Called with the job's status while it ends.

        Raises:
            ConfigError: The job does not run, or saves no checkpoints to continue from.
            TimedOut: Its processes or pods did not end in time.
        """
        jobs, name = self._find(job)
        if not may_lose_steps and (loss := jobs.loss_at_stop(name)):
            raise ConfigError(
                loss, hint="Let it finish; or stop it all the same with may_lose_steps=True."
            )
        jobs.stop(name, is_dry_run=is_dry_run)
        if wait and not is_dry_run:
            seconds = jobs.stop_seconds(name)
            waiting.wait_until_at_rest(jobs, name, timeout_seconds=seconds, on_status=on_status)

    def resume(
        self,
        job: Name,
        *,
        is_dry_run: bool = False,
        on_events: OnEvents | None = None,
    ) -> JobResult | None:
        """Continue a stopped job from its newest checkpoint.

        A job on this machine runs as with `train`, and has ended when this returns; a job in a
        cluster continues there.

        Args:
            job: Its directory or its name.
            is_dry_run: Whether to only check that this is possible.
            on_events: Called with the new events of a job that runs here.

        Returns:
            The result of a job on this machine; None for a job in a cluster.

        Raises:
            ConfigError: The job runs, or has finished.
        """
        jobs, name = self._find(job)
        return jobs.resume(name, is_dry_run=is_dry_run, on_events=on_events)

    def delete(self, job: Name, *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove a job's directory, or a job from its cluster; its output is kept.

        Args:
            job: Its directory or its name.
            is_dry_run: Whether to only check that this is possible.

        Returns:
            The paths or objects that are removed.

        Raises:
            ConfigError: A process works in the directory.
            OutputError: The directory is not that of a job, or contains other files as well.
        """
        jobs, name = self._find(job)
        return jobs.delete(name, is_dry_run=is_dry_run)

    def _elsewhere(self) -> "Mapping[str, ListJobs]":
        """What lists the jobs that run elsewhere, for a page; nothing where no cluster is known.

        Raises:
            NoCluster: None is configured, though a place in one was given.
            MissingDependency: The client of the only cluster is not installed.
        """
        from edl_horovod.displays.page.folder import ListedJob

        def list_jobs(jobs: Jobs) -> "Iterator[ListedJob]":
            try:
                rows = jobs.list()
            except NoCluster:
                return
            for row in rows:
                yield ListedJob(row.job, row.snapshot(), functools.partial(jobs.source, row.job))

        try:
            opened = self._open_all(are_detached=True)
        except (NoCluster, MissingDependency):
            if self._place:
                raise
            return {}
        return {kind: functools.partial(list_jobs, jobs) for kind, jobs in opened.items()}

    def _open_all(self, *, are_detached: bool) -> dict[str, Jobs]:
        """The jobs of all launch targets here, or of those elsewhere that can be opened.

        Raises:
            NoCluster: None can be opened, as no cluster is configured.
            MissingDependency: None can be opened, as a client is not installed.
        """
        opened: dict[str, Jobs] = {}
        missing: list[NoCluster | MissingDependency] = []
        for kind, launch_target in self._targets():
            if launch_target.is_detached == are_detached:
                try:
                    jobs = self._open(kind)
                except (NoCluster, MissingDependency) as error:
                    missing.append(error)
                else:
                    # Targets may share their jobs, as those of this machine do.
                    if all(type(jobs) is not type(other) for other in opened.values()):
                        opened[kind] = jobs
        if missing and not opened:
            raise missing[-1]
        return opened

    def _find(self, job: Name) -> tuple[Jobs, str]:
        """Return the jobs of the first launch target whose job this is, and the name."""
        name = os.fspath(job)
        if not name:
            raise ConfigError(
                "A job needs a name.", received="''", hint="Give its directory or name."
            )
        try:
            return self._open(self._kind(name)), name
        except (NoCluster, MissingDependency) as error:
            raise type(error)(
                f"There is no directory of a job {name!r} here, so it is taken for the name of "
                f"a job in a cluster. {error}"
            ) from error

    def _kind(self, name: str) -> str:
        kinds = (kind for kind, launch_target in self._targets() if launch_target.names(name))
        return next(kinds, "local")  # Its error says that there is no job at this path.

    def _targets(self) -> Iterator[tuple[str, target.LaunchTarget[Any, Any]]]:
        """The launch targets, without detached ones that lack a keyword of the place."""
        for kind, make in target.TARGETS.loaded().items():
            launch_target = make()
            if not launch_target.is_detached or launch_target.place_keys >= self._place.keys():
                yield kind, launch_target

    def _open(self, kind: str) -> Jobs:
        if kind not in self._opened:
            self._opened[kind] = target.find(kind).jobs(self._place)
        return self._opened[kind]
