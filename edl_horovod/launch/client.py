"""Jobs that run or ran, on this machine and in a cluster: look at them, and change them."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from edl_horovod.errors import ConfigError, MissingDependency, NoCluster
from edl_horovod.job.events import OnEvents
from edl_horovod.launch import target, waiting
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine, OnStatus
from edl_horovod.supervisor.run import JobResult

if TYPE_CHECKING:
    from edl_horovod.displays.page.server import Dashboard

__all__ = ["Client"]


class Client:
    """Jobs by their names; close it, or use it in a `with`.

    A job on this machine is named by its directory, one in a cluster by its name: a JOB that is the
    directory of a job, or that no job in a cluster can be called, is on this machine. All methods
    raise EdlErrors.
    """

    def __init__(self, **place: str) -> None:
        """Ask nothing yet: a cluster is looked for when a job in a cluster is named.

        Args:
            **place: Where jobs in a cluster are, in the words of their launch target: `namespace`
                and `context` of Kubernetes. An empty text takes the default.

        Raises:
            ConfigError: No launch target knows such a keyword.
        """
        self._place = {key: value for key, value in place.items() if value}
        targets = target.TARGETS.loaded().values() if self._place else ()
        known = {key for make in targets for key in make().place_keys}
        if unknown := self._place.keys() - known:
            raise ConfigError(
                "No launch target knows such a place.",
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
        self,
        folders: Sequence[str | os.PathLike[str]] | None = None,
        *,
        all_namespaces: bool = False,
    ) -> list[JobRow]:
        """The jobs of one place.

        Args:
            folders: Jobs on this machine, in and up to three folders below these; None means the
                jobs of the cluster.
            all_namespaces: Jobs in all namespaces of the cluster.
        """
        paths = [os.fspath(folder) for folder in folders or ()]
        rows: list[JobRow] = []
        listed: set[type[Jobs]] = set()
        missing: list[NoCluster | MissingDependency] = []
        for kind, launch_target in self._targets():
            if launch_target.is_detached == (folders is None):
                try:
                    jobs = self._open(kind)
                    # Targets may share their jobs, as those of this machine do.
                    if type(jobs) not in listed:
                        rows += jobs.list(paths, all_namespaces=all_namespaces)
                        listed.add(type(jobs))
                except (NoCluster, MissingDependency) as error:
                    missing.append(error)
        if missing and not listed:
            raise missing[-1]
        return rows

    def status(self, job: str | os.PathLike[str], *, is_brief: bool = False) -> JobStatus:
        """Where a job is, and what it waits for.

        Args:
            job: Its directory or its name.
            is_brief: Leave out where the training of a job in a cluster is: it is in a pod's log.
        """
        jobs, name = self._find(job)
        return jobs.status(name, is_brief=is_brief)

    def logs(
        self,
        job: str | os.PathLike[str],
        *,
        rank: int | None = None,
        worker: str = "",
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """What the processes of a job wrote, one after the other or as it comes.

        Args:
            job: Its directory or its name.
            rank: Only the worker that has this rank in the ring now.
            worker: Only this pod; on this machine only this worker or process.
            follow: Go on until the job, or that pod, has ended.
            tail: Only so many of the last lines of each.

        Raises:
            ConfigError: There is no such rank or worker.
        """
        jobs, name = self._find(job)
        only = worker if rank is None else jobs.member(name, rank)
        return jobs.logs(name, only, follow=follow, tail=tail)

    def events(self, job: str | os.PathLike[str], *, follow: bool = False) -> Iterator[EventLine]:
        """What happened to a job, the oldest first.

        In a cluster these are the last events of the job, as far as its launcher's log shows them,
        and what Kubernetes says of its objects, which it forgets after an hour.

        Args:
            job: Its directory or its name.
            follow: Go on until the job has ended.
        """
        jobs, name = self._find(job)
        return jobs.events(name, follow=follow)

    def dashboard(
        self, job: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0
    ) -> "Dashboard":
        """The page of a job, listening: `url` says where, `serve()` serves it; close it.

        Args:
            job: Its directory or its name.
            host: Address to listen on.
            port: Port to listen on; 0 takes a free one.

        Raises:
            ConfigError: One cannot listen there.
            MissingDependency: The packages of the dashboard are not installed.
        """
        from edl_horovod.displays.page.server import Dashboard

        jobs, name = self._find(job)
        return Dashboard(jobs.source(name), host=host, port=port)

    def is_here(self, job: str | os.PathLike[str]) -> bool:
        """Whether a job is one of this machine."""
        return not target.find(self._kind(os.fspath(job))).is_detached

    # -- waiting

    def wait(
        self,
        job: str | os.PathLike[str],
        condition: str = "finished",
        *,
        timeout_seconds: float | None = None,
        on_status: OnStatus | None = None,
    ) -> JobStatus | None:
        """Wait until a job reaches a state; one that is not there yet may be being started.

        Args:
            job: Its directory or its name.
            condition: `running`, `finished`, `ended` (which takes a failed job too) or `deleted`.
            timeout_seconds: Longest wait; None waits for ever.
            on_status: Called with the job's status again and again.

        Returns:
            The status; None where the job is deleted.

        Raises:
            ConfigError: There is no such condition, or no such job after 30 seconds.
            JobFailed: The job failed, and so cannot reach the state.
            TimedOut: It took longer.
        """
        return waiting.wait(
            lambda: self._find(job)[0],
            os.fspath(job),
            condition,
            timeout_seconds=timeout_seconds,
            on_status=on_status,
        )

    # -- changing

    def scale(
        self, job: str | os.PathLike[str], num_ranks: int, *, is_dry_run: bool = False
    ) -> int:
        """Change how many ranks a running job has; those that go leave the ring before they end.

        Args:
            job: Its directory or its name.
            num_ranks: The new number; of a job on this machine, here.
            is_dry_run: Only check whether it may be.

        Returns:
            The old number.

        Raises:
            ConfigError: The ring may not have that size, or cannot change.
        """
        jobs, name = self._find(job)
        return jobs.scale(name, num_ranks, is_dry_run=is_dry_run)

    def loss_at_stop(self, job: str | os.PathLike[str]) -> str:
        """What `stop` would lose, as a sentence; empty where the job goes on from a checkpoint."""
        jobs, name = self._find(job)
        return jobs.loss_at_stop(name)

    def stop(
        self,
        job: str | os.PathLike[str],
        *,
        may_lose_steps: bool = False,
        is_dry_run: bool = False,
        wait: bool = True,
        on_status: OnStatus | None = None,
    ) -> None:
        """Save a checkpoint of a job and end its processes or pods; `resume` continues it.

        Args:
            job: Its directory or its name.
            may_lose_steps: Stop also a job that saves no checkpoints.
            is_dry_run: Only check whether it may be.
            wait: Return only when no process or pod of the job is left.
            on_status: Called with the job's status while it ends.

        Raises:
            ConfigError: The job does not run, or it saves no checkpoints to go on from.
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
        job: str | os.PathLike[str],
        *,
        is_dry_run: bool = False,
        on_events: OnEvents | None = None,
    ) -> JobResult | None:
        """Continue a stopped job from its newest checkpoint.

        A job of this machine runs beside the caller and has ended when this returns, as with
        `train`; one in a cluster goes on there.

        Args:
            job: Its directory or its name.
            is_dry_run: Only check whether it may be.
            on_events: Called with the new events of a job that runs here.

        Returns:
            The result of a job that ran here; None for one in a cluster.

        Raises:
            ConfigError: The job runs, or has finished.
        """
        jobs, name = self._find(job)
        return jobs.resume(name, is_dry_run=is_dry_run, on_events=on_events)

    def delete(self, job: str | os.PathLike[str], *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove a job's directory, or a job from its cluster; its output stays.

        Args:
            job: Its directory or its name.
            is_dry_run: Only check whether it may be.

        Returns:
            What is removed.

        Raises:
            ConfigError: Somebody works in the directory.
            OutputError: The directory is not a job's, or holds something else too.
        """
        jobs, name = self._find(job)
        return jobs.delete(name, is_dry_run=is_dry_run)

    def _find(self, job: str | os.PathLike[str]) -> tuple[Jobs, str]:
        """The jobs of the first launch target that knows the job by this name."""
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
        return next(kinds, "local")  # What says of a path that no job is there.

    def _targets(self) -> Iterator[tuple[str, target.LaunchTarget[Any, Any]]]:
        """The launch targets, without those that do not know the place."""
        for kind, make in target.TARGETS.loaded().items():
            launch_target = make()
            if not launch_target.is_detached or launch_target.place_keys >= self._place.keys():
                yield kind, launch_target

    def _open(self, kind: str) -> Jobs:
        if kind not in self._opened:
            self._opened[kind] = target.find(kind).jobs(self._place)
        return self._opened[kind]
