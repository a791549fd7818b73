"""launch=slurm: a batch script that runs the elastic job inside an allocation of Slurm.

A job is named by its number in Slurm, or by its directory, which is on a file system that this
machine and the nodes share. The directory holds all that is not Slurm's to know.
"""

import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from edl_horovod import errors
from edl_horovod.config import resolved, tasks
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.page.snapshot import (
    UNAVAILABLE,
    DirectorySource,
    JobSnapshot,
    Source,
)
from edl_horovod.health import Finding, Scope
from edl_horovod.job import earlier, hosts, output_checks
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.job.events import Recorded
from edl_horovod.job.state import JobState, TargetDetails
from edl_horovod.launch.jobs import EventLine, JobRow, Jobs, JobStatus, LogLine
from edl_horovod.launch.local_jobs import LocalJobs, directory_of, read_logs
from edl_horovod.launch.target import DryRun, LaunchTarget, SubmittedJob
from edl_horovod.models.framework_name import with_framework

log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""Longest wait for an answer of Slurm's commands."""
COMMENT = "edl "
"""Start of the comment of our jobs in Slurm; the job's directory follows."""
_LAUNCHED_HERE = "\nlaunch:\n  kind: slurm\n"
"""Part of the settings in the directory of a job of this target."""
END = "END_OF_SETTINGS"
"""Stands below the settings in the script, which are YAML with one key on each line."""
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "RESIZING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
"""States of Slurm; with one that is in neither list a job has ended."""
NOT_AT_WORK = ("unknown", "suspended", "lost")
"""States, by the events, of a job that may be active in Slurm all the same."""
FIELDS = ("%i", "%T", "%r", "%P", "%N", "%L", "%V", "%S", "%k")
"""What squeue tells of a job: the fields of `_SlurmJob`. The comment is last; it may hold `|`."""


@dataclass(frozen=True, kw_only=True)
class SlurmPlan:
    """A job for Slurm, of which Slurm does not know yet."""

    config: JobConfig
    script: str
    """The batch script."""


class SlurmTarget(LaunchTarget[SlurmPlan, SubmittedJob]):
    """The ring may become smaller while the job runs, and grow again up to its allocation."""

    is_detached: ClassVar[bool] = True

    def plan(self, config: JobConfig) -> SlurmPlan:
        """The batch script; see `LaunchTarget`."""
        config = with_framework(earlier.with_checkpoint_lanes(with_job_dir(config)))
        tasks.check_start(config)
        slots = config.slurm.slots_per_node
        if config.launch.np % slots:
            raise errors.ConfigError(
                "launch.np must be a multiple of slurm.slots_per_node.",
                received={"launch.np": config.launch.np, "slurm.slots_per_node": slots},
            )
        num_nodes = config.launch.np // slots
        if config.slurm.min_nodes > num_nodes:
            raise errors.ConfigError(
                "slurm.min_nodes must not be above the number of nodes.",
                received={"slurm.min_nodes": config.slurm.min_nodes, "nodes": num_nodes},
                hint="The number of nodes is launch.np divided by slurm.slots_per_node.",
            )
        return SlurmPlan(config=config, script=_script(config, num_nodes))

    def describe(self, plan: SlurmPlan, *, check: DryRun = "client", whole: bool = False) -> str:
        """The batch script; `check="server"` has Slurm say whether and when it would run."""
        if whole:
            raise errors.ConfigError(
                "-o yaml shows manifests, and a job under Slurm has none.",
                received="-o yaml, launch.kind=slurm",
                hint="Leave it out; --dry-run prints the whole batch script.",
            )
        output_checks.check_is_free(plan.config)
        output_checks.check_paths(plan.config)
        if check == "server":
            # Slurm answers on the standard error.
            ask_slurm("sbatch", "--test-only", stdin=plan.script)
        return plan.script

    def launch(self, plan: SlurmPlan, **_: object) -> SubmittedJob:
        """Hand the batch script to Slurm."""
        output_checks.check_is_free(plan.config)
        output_checks.check_paths(plan.config)
        job_dir = Path(os.path.abspath(plan.config.job_dir))
        try:
            job_dir.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.OutputError(
                f"The folder of the job's directory cannot be made: {error}.",
                received={"job_dir": str(job_dir)},
            ) from error
        number = ask_slurm("sbatch", "--parsable", stdin=plan.script).strip().partition(";")[0]
        return SubmittedJob(name=number, output=plan.config.output, job_dir=str(job_dir))

    def name_of(self, plan: SlurmPlan) -> tuple[str, dict[str, str]]:
        """The job's directory; its number is not known yet."""
        return os.path.abspath(plan.config.job_dir), {}

    def names(self, job: str) -> bool:
        """Whether it is a number in Slurm, or the directory of a job that started there."""
        if _is_number(job):
            return True
        try:
            return _LAUNCHED_HERE in JobDir(Path(job)).config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False

    def jobs(self, place: Mapping[str, str]) -> "SlurmJobs":
        """The jobs in Slurm's queue."""
        if shutil.which("squeue") is None:
            raise _not_installed("squeue")
        return SlurmJobs()


@dataclass(frozen=True)
class _SlurmJob:
    """What Slurm knows of a job."""

    number: str
    state: str
    reason: str
    partition: str
    nodes: str
    time_left: str
    submitted: str
    started: str
    comment: str

    @property
    def job_dir(self) -> Path:
        return Path(self.comment.removeprefix(COMMENT))

    @property
    def could_not_go_on(self) -> bool:
        """Whether it was started again and wrote no event; one that was cancelled never started."""
        if self.state == "CANCELLED":
            return False
        started = _seconds(self.started, default=0.0)
        with suppress(OSError):
            return JobDir(self.job_dir).events.stat().st_mtime < started
        return False

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def is_active(self) -> bool:
        return self.is_pending or self.is_running


class SlurmJobs(Jobs):
    """The jobs in Slurm's queue, those that ended within the last minutes, and directories of jobs.

    Some minutes after its end (`MinJobAge`) Slurm forgets a job, and only its directory names it.

    All methods raise ClusterError where Slurm refuses or cannot be reached.
    """

    def __init__(self) -> None:
        self._local = LocalJobs()

    def list(self, folders: Sequence[str] = (), *, all_namespaces: bool = False) -> list[JobRow]:
        """The user's jobs that this package submitted; all users' with `all_namespaces`."""
        whose = () if all_namespaces else ("--me",)
        return [self._row(job) for job in _queue(*whose) if job.comment.startswith(COMMENT)]

    def exists(self, job: str) -> bool:
        """Whether Slurm knows the job."""
        try:
            self._job(job)
        except errors.ObjectNotFound:
            return False
        return True

    def config(self, job: str) -> JobConfig:
        """The settings of a job that has started."""
        return self._local.config(self._directory(job))

    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """Where the job is, as Slurm and its events tell."""
        return self._status(self._job(job))

    def source(self, job: str) -> Source:
        """The job's directory, and Slurm while the job waits."""
        return _SlurmSource(self, job)

    def logs(self, job: str, worker: str, *, follow: bool, tail: int | None) -> Iterator[LogLine]:
        """What the launcher, the coordinator and the workers of each node wrote."""
        self._directory(job)
        is_over = (lambda: not self._job(job).is_running) if follow else None
        folder = JobDir(self._job(job).job_dir).logs
        return read_logs(folder, only=worker.partition(":")[0], tail=tail, is_over=is_over)

    def events(self, job: str, *, follow: bool = False) -> Iterator[EventLine]:
        """The job's events, as its directory has them."""
        return self._local.events(self._directory(job), follow=follow)

    def recorded(self, job: str) -> Iterable[Recorded]:
        """The job's events, as its directory has them."""
        return self._local.recorded(self._directory(job))

    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change how many slots of the allocation's nodes are used, the first nodes before others.

        The nodes without a slot stay in the allocation, so that the ring may grow again.
        """
        config, running = self.config(job), self._job(job)
        if not running.is_running:
            raise _not_running(running, "scaled", "A new job gets its ranks by launch.np.")
        path, slots = JobDir(running.job_dir).hosts, config.slurm.slots_per_node
        before = hosts.read(path)
        tasks.check_change(config, num_ranks, received=str(num_ranks))
        if num_ranks > slots * len(before):
            raise errors.ConfigError(
                "Slurm does not make the allocation of a running job larger.",
                received=f"{num_ranks} ranks, and {len(before)} nodes with {slots} each",
                hint=f"edl stop {job}, and submit the job again with launch.np={num_ranks} and"
                " resume=auto: it goes on from its checkpoint.",
            )
        if not is_dry_run:
            after, left = {}, num_ranks
            for host in before:
                after[host] = min(slots, left)
                left -= after[host]
            hosts.write(path, after)
        return sum(before.values())

    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Ask the launcher by a signal; a job that has not started is cancelled.

        A file in the directory would be lost where the launcher has yet to prepare that.
        """
        slurm_job = self._job(job)
        if not slurm_job.is_active:
            raise _not_running(slurm_job, "stopped", f"See edl status {job}.")
        if is_dry_run:
            return
        if slurm_job.is_pending:
            ask_slurm("scancel", slurm_job.number)
            return
        ask_slurm("scancel", "--batch", "--signal=TERM", slurm_job.number)

    def loss_at_stop(self, job: str) -> str:
        """See `Jobs`; a job that waits for its start loses nothing."""
        return "" if self._job(job).is_pending else super().loss_at_stop(job)

    def stop_seconds(self, job: str) -> float:
        """How long the launcher waits for its workers, and Slurm until the nodes are free."""
        with suppress(errors.ConfigError):
            return self.config(job).slurm.leave_seconds + ANSWER_SECONDS
        return ANSWER_SECONDS  # It has not started.

    def resume(self, job: str, *, is_dry_run: bool = False, **_: object) -> None:
        """Submit the job again, under a new number, to go on from its newest checkpoint."""
        slurm_job = self._job(job)
        state = self._status(slurm_job).state
        if slurm_job.is_active or state == "finished":
            raise errors.ConfigError(
                f"Job {job} is {state}, so it cannot be resumed.", received=job
            )
        config = replace(self.config(job), job_dir=str(slurm_job.job_dir), resume="auto")
        target = SlurmTarget()
        plan = target.plan(config)
        if is_dry_run:
            target.describe(plan)
        else:
            log.info("Slurm's number of the job is %s from now on.", target.launch(plan).name)

    def delete(self, job: str, *, is_dry_run: bool = False) -> Sequence[str]:
        """Cancel a job that has not ended, whose directory stays; else remove its directory."""
        slurm_job = self._job(job)
        if not slurm_job.is_active:
            return self._local.delete(str(slurm_job.job_dir), is_dry_run=is_dry_run)
        if not is_dry_run:
            ask_slurm("scancel", slurm_job.number)
        return [f"job {slurm_job.number} of Slurm"]

    def _job(self, name: str) -> _SlurmJob:
        """What Slurm knows of a job of ours; of a directory the newest job, which it may forget.

        Raises:
            ObjectNotFound: It knows none of this number, or it is not ours.
        """
        if not _is_number(name):
            comment = f"{COMMENT}{os.path.abspath(name)}"
            # Whose it is, the directory tells, which is not there before the job has started.
            user = os.stat(name).st_uid if os.path.exists(name) else os.getuid()
            jobs = [job for job in _queue("--user", str(user)) if job.comment == comment]
            why = "the job is not in its queue"
            forgotten = _SlurmJob("0", "FORGOTTEN", why, "", "", "", "", "", comment)
            return max(jobs, key=lambda job: (job.is_active, int(job.number)), default=forgotten)
        for job in _queue("--jobs", name):
            if job.comment.startswith(COMMENT):
                return job
            raise errors.ObjectNotFound(
                f"edl did not submit job {name} of Slurm.",
                received=f"its comment is {job.comment!r}",
            )
        raise errors.ObjectNotFound(
            f"Slurm has no job {name}.",
            received=name,
            hint="Some minutes after its end Slurm forgets a job: name it by its directory then.",
        )

    def job_dir(self, name: str) -> Path:
        """The directory of a job of ours, which is not there before the job has started."""
        return self._job(name).job_dir

    def _directory(self, number: str) -> str:
        """The directory of a job that has started.

        Raises:
            ConfigError: It has not.
        """
        job = self._job(number)
        if not JobDir(job.job_dir).config.is_file():
            raise errors.ConfigError(
                f"Job {number} has not started.",
                received=f"its state in Slurm is {job.state} ({job.reason})",
                hint=f"edl wait {number} --for running" if job.is_pending else "",
            )
        return str(job.job_dir)

    def _status(self, job: _SlurmJob) -> JobStatus:
        progress = JobState()
        with suppress(errors.ConfigError):  # There is no directory before the job has started.
            progress = self._local.status(str(job.job_dir)).progress
        state, message = progress.state, progress.message
        if job.is_pending:
            # Slurm gives no reason before it has looked at the job.
            message = "" if job.reason == "None" else f"Slurm says {job.reason}"
            state = "waiting"
        elif job.is_running:
            if state in NOT_AT_WORK:
                state, message = "starting", ""
        elif not progress.is_over or state == "lost" or job.could_not_go_on:
            state, message = "failed", f"Slurm says {job.state}: {job.reason}"
        facts = {"number": job.number, "partition": job.partition, "nodes": job.nodes}
        details = TargetDetails(
            state=state,
            message=message,
            created=_seconds(job.submitted),
            facts={**facts, "time left": job.time_left},
            waits_for=(message,) if job.is_pending and message else (),
            has_started=not job.is_pending,
            fields={"state": state, "message": message, "slurm": asdict(job)},
        )
        return JobStatus(progress=progress, details=details, is_at_rest=not job.is_active)

    def _row(self, job: _SlurmJob) -> JobRow:
        status, num_wanted = self._status(job), 0
        with suppress(errors.EdlError, OSError):
            num_wanted = sum(hosts.read(JobDir(job.job_dir).hosts).values())
        return JobRow(
            job=job.number,
            place=job.partition,
            state=status.state,
            message=status.message,
            num_ready=0 if not job.is_running else status.progress.size,
            num_wanted=num_wanted,
            step=status.progress.step,
            total_steps=status.progress.total_steps,
            created=_seconds(job.submitted),
        )


class _SlurmSource(DirectorySource):
    """A job's directory; before the job is at work there, what Slurm says of it."""

    def __init__(self, jobs: SlurmJobs, job: str) -> None:
        super().__init__(directory_of(str(jobs.job_dir(job))))
        self._jobs, self._job = jobs, job

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job; Slurm is only asked if no process is at work."""
        snapshot = super().snapshot()
        if snapshot.state is not None and snapshot.state.state not in NOT_AT_WORK:
            return snapshot
        try:
            status = self._jobs.status(self._job)
        except errors.ClusterError as error:
            return replace(snapshot, problem=str(error), http_status=UNAVAILABLE)
        if status.is_at_rest:
            return snapshot
        curves = replace(snapshot, problem="", http_status=200, ended=None)
        return replace(curves, state=status.progress, details=status.details)


def _is_number(job: str) -> bool:
    """Whether it is a number: no job of Kubernetes has one for its name."""
    return job.isascii() and job.isdecimal()


def check_slurm(scope: Scope) -> Iterator[Finding]:
    """The partitions of Slurm, for `edl doctor`."""
    if shutil.which("sinfo") is None:
        yield Finding("NONE", "no Slurm, which only launch=slurm needs: sinfo is not here")
        return
    command = ("sinfo", "--noheader", "--format=%P %a %D")
    done = scope.programs.run(command, seconds=ANSWER_SECONDS)
    if done is None:
        raise _no_answer(command)
    partitions = _output(done).splitlines()
    yield Finding("OK", f"partitions (state, nodes): {'; '.join(partitions)}")


def ask_slurm(*command: str, stdin: str = "") -> str:
    """What a command of Slurm prints.

    Raises:
        NoCluster: Slurm is not installed or not configured here.
        ClusterUnreachable: Its controller cannot be reached.
        ObjectNotFound: It knows no such job.
        ClusterForbidden: The user may not do this.
        ClusterError: It refuses for another reason.
    """
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            env=os.environ | {"SLURM_TIME_FORMAT": "standard"},
        )
    except FileNotFoundError as error:
        raise _not_installed(command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise _no_answer(command) from error
    return _output(done)


def _output(done: subprocess.CompletedProcess[str]) -> str:
    """What a command of Slurm has printed.

    Raises:
        ClusterError: It failed.
    """
    if done.returncode == 0:
        return done.stdout
    text = done.stderr.strip() or f"it ended with {done.returncode}"
    known = {
        "Could not establish a configuration source": errors.NoCluster,
        "Invalid job id": errors.ObjectNotFound,
        "Unable to contact slurm controller": errors.ClusterUnreachable,
        "Access/permission denied": errors.ClusterForbidden,
    }
    kind = next((kind for words, kind in known.items() if words in text), errors.ClusterError)
    raise kind(f"Slurm refused: {text}.", received=shlex.join(done.args))


def _no_answer(command: Sequence[str]) -> errors.ClusterUnreachable:
    return errors.ClusterUnreachable(
        f"Slurm did not answer within {ANSWER_SECONDS:g} s.", received=shlex.join(command)
    )


def _not_installed(program: str) -> errors.NoCluster:
    return errors.NoCluster(
        "Slurm's commands are not installed here.",
        received=f"no program {program}",
        hint="Use edl where jobs are submitted to Slurm.",
    )


def _queue(*words: str) -> list[_SlurmJob]:
    """Jobs of Slurm, those that ended lately included."""
    form = "|".join(FIELDS)
    try:
        text = ask_slurm("squeue", "--noheader", "--states=all", f"--format={form}", *words)
    except errors.ObjectNotFound:
        return []
    rows = [line.split("|", len(FIELDS) - 1) for line in text.splitlines()]
    return [_SlurmJob(*row) for row in rows]


def _not_running(job: _SlurmJob, change: str, hint: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"The job is not running, so it cannot be {change}.",
        received=f"job {job.number} is {job.state}",
        hint=hint,
    )


def _seconds(text: str, default: float | None = None) -> float:
    """A time of Slurm, which is that of this machine's time zone, in seconds since the epoch.

    Where Slurm names none, the default, or now.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time() if default is None else default


def _script(config: JobConfig, num_nodes: int) -> str:
    """The batch script: options, the user's lines, and the launcher with the settings."""
    slurm, slots = config.slurm, config.slurm.slots_per_node
    job_dir = os.path.abspath(config.job_dir)
    nodes = f"{slurm.min_nodes}-{num_nodes}" if slurm.min_nodes else f"{num_nodes}"
    options = {
        "job-name": f"edl-{config.task}",
        "comment": f"{COMMENT}{job_dir}",
        "chdir": os.getcwd(),
        "output": f"{job_dir}.slurm-%j.log",
        "open-mode": "append",
        "nodes": nodes,
        "ntasks-per-node": "1",
        "cpus-per-task": str(slots * slurm.cpus_per_rank),
        "gpus-per-node": str(slots * slurm.gpus_per_rank) if slurm.gpus_per_rank else "",
        "mem": slurm.memory,
        "time": slurm.time,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        # The batch script alone gets it, which asks the workers to save and leave.
        "signal": f"B:USR1@{slurm.leave_seconds}",
    }
    flags = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
    # The ring goes on without a node that fails.
    flags += ["--no-kill", "--requeue" if slurm.requeue else "--no-requeue"]
    flags += map(shlex.quote, slurm.options)
    program = shlex.join([sys.executable, "-m", "edl_horovod.launch.slurm_allocation", "launcher"])
    lines = ["#!/bin/bash", *(f"#SBATCH {flag}" for flag in flags), *slurm.setup]
    lines += [f"exec {program} --config /dev/stdin <<'{END}'", f"{resolved.to_yaml(config)}{END}"]
    return "".join(f"{line}\n" for line in lines)
