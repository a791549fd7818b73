"""Runs one job from its directory to its result: starts and watches its local processes."""

import contextlib
import functools
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edl_horovod import errors
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS, largest_ring
from edl_horovod.coordinator import saved, tokens
from edl_horovod.displays import load, open_displays
from edl_horovod.job import earlier, hosts, outcome, output_checks, timeline
from edl_horovod.job import log as logs
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import (
    EventLog,
    GenerationEvent,
    JobEvent,
    OnEvents,
    Recorded,
    WorkerEvent,
    follow,
)
from edl_horovod.job.outcome import Failure, Outcome, Success
from edl_horovod.job.stops import Stops
from edl_horovod.models import job_zoo, lookup
from edl_horovod.models.framework_name import framework_name, with_framework
from edl_horovod.records.sources.table import check_sources
from edl_horovod.supervisor import needs, processes
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.plan import LOCAL_HOST, Command, LaunchPlan
from edl_horovod.supervisor.processes import Child
from edl_horovod.supervisor.slots import Slots

__all__ = ["STOP_SECONDS", "JobResult", "run_plan"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ADDRESS_SECONDS = 30.0

STOP_SECONDS = 60.0
"""How long workers may take to end their step and to save a checkpoint after a request to stop."""

_RANK_OF_MPIRUN = re.compile(r"noticed\s+that\s+process\s+rank\s+(\d+)\s+with\s+PID")
"""In its words about a rank that a signal has ended, in lines of some length."""
_PEER_OF_MPI = re.compile(r"unexpectedly\s+disconnected\b.*?Peer host:\s+(\S+)", re.DOTALL)
"""In Open MPI's words about a rank elsewhere, whose end another one noticed before mpirun did."""

NUM_LINES_OF_MPI = 60
"""In which all is that Open MPI prints at the end of a ring."""

_REPORTED = ("steps", "metrics", "output")
"""The parts of the outcome that the last event and the result of the launch tell."""
_FOR_LACK_OF_RANKS = (errors.JobFailed, errors.NotEnoughWorkers)
"""Errors of a job that may have lost ranks."""
Show = Callable[[], list[Recorded]]
"""Shows the events since the last call, and returns them."""


class _StopRequested(errors.Interrupted):
    """The launcher was asked to stop the job, which can be resumed later."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job that succeeded."""

    output: str
    """Path of the output; empty for a job without one."""
    job_dir: str
    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Wall time of the whole job."""


def run_plan(
    plan: LaunchPlan, *, on_events: OnEvents | None = None, warm: WarmServer | None = None
) -> JobResult:
    """Run a job by its plan; a job whose launcher has died is taken over.

    Args:
        plan: The job's launch plan.
        on_events: Called with the job's new events, a few times a second.
        warm: Keeps the fork server of workers between the jobs of this program.

    Raises:
        EdlError: The job did not succeed; the subclass tells the kind of reason.
    """
    config = plan.config
    began = time.monotonic()
    displays = load(config.displays)
    is_takeover = earlier.was_filled_by(plan.job_dir, plan.secret_file)
    if not is_takeover:
        check_inputs(config)
        if TASKS[config.task].module:
            plan = replace(plan, config=with_framework(job_zoo.localized(config)))
        if LOCAL_HOST in plan.hosts or plan.join:
            needs.require_worker_packages(framework_name(plan.config))
    with (
        earlier.hold(
            plan.job_dir,
            plan.config,
            hosts=plan.hosts,
            secret_file=plan.secret_file,
            job_id=plan.job_id,
            is_takeover=is_takeover,
            has_coordinator=plan.ring is None,
        ),
        logs.logging_to(plan.job_dir.logs / "launcher.log", "launcher"),
        EventLog(plan.job_dir.events, "launcher") as events,
        open_displays(displays, plan.config) as show_elsewhere,
    ):
        state, message = "taken over" if is_takeover else "starting", ""
        if is_takeover and plan.ring is not None:
            message = earlier.takeover_message(config, plan.job_dir)
            log.warning("%s", message)
        events.write(JobEvent(state=state, task=config.task, message=message, output=config.output))
        new_events, stops = follow(plan.job_dir.events), Stops()

        def show() -> list[Recorded]:
            nonlocal stops
            recorded = next(new_events, [])  # None come after an error of the file.
            stops = functools.reduce(Stops.after, recorded, stops)
            if recorded:
                show_elsewhere(recorded)
                if on_events is not None:
                    on_events(recorded)
            return recorded

        def show_all() -> None:
            while show():
                pass

        def end(state: str, message: str = "", **result: Any) -> None:
            # The processes have ended, so on a full disk the space reserved for the result serves
            # for this event.
            with contextlib.suppress(OSError):
                plan.job_dir.result_room.unlink(missing_ok=True)
            events.write(JobEvent(state=state, task=config.task, message=message, **result))
            show_all()
            if config.debug.timeline:
                _write_timeline(plan.job_dir)

        try:
            with processes.signals_interrupt(), _own_temporary_files(plan) as run_as:
                ended = _outcome(plan)
                if ended is None and plan.ring is not None:
                    ended = _run_static(run_as, events, show)
                elif ended is None:
                    ended = _run_elastic(run_as, events, show, warm)
                # A job that was asked to stop may already have ended by itself.
                ended = ended or _outcome(plan)
                if ended is None:
                    raise _StopRequested(
                        "The job was stopped; all its processes have ended.",
                        hint=f"To continue it, run: edl resume {plan.job_dir}",
                    )
                if isinstance(ended, Failure):
                    raise ended.as_error()
        except _StopRequested as error:
            end("suspended", str(error))
            raise
        except errors.EdlError as error:
            show_all()
            if stops.last is not None and isinstance(error, _FOR_LACK_OF_RANKS):
                error = error.with_more_hint(f" Why the ring stopped last: {stops.last}.")
            end("failed", str(error))
            raise error.with_more_hint(earlier.resume_hint(config, plan.job_dir)) from error
        except OSError as error:  # Of the job's directory, or of the limits of this process.
            end("failed", str(error))
            hint = f"{errors.hint_of(error)}{earlier.resume_hint(config, plan.job_dir)}"
            raise errors.OutputError(
                f"The launcher of the job cannot go on: {error}.",
                received={"job_dir": str(plan.job_dir)},
                hint=hint,
            ) from error
        except KeyboardInterrupt as error:
            end("failed", "interrupted")
            raise errors.Interrupted(
                "The job was interrupted; all its processes have ended.",
                hint=earlier.resume_hint(config, plan.job_dir),
            ) from error
        result: dict[str, Any] = {key: getattr(ended, key) for key in _REPORTED}
        end("finished", **result)
    return JobResult(job_dir=str(plan.job_dir), seconds=time.monotonic() - began, **result)


def _write_timeline(job_dir: JobDir) -> None:
    try:
        timeline.write(job_dir)
    except OSError as error:
        log.warning("%s cannot be written: %s", job_dir.timeline, error)


def check_inputs(config: JobConfig) -> None:
    """Check what can be checked before any process starts.

    Raises:
        DataError: A glob matches nothing, or the files have more than one record format.
        ConfigError: The trained model does not exist; a setting does not apply to the data; or
            neither an output nor a processor receives the predictions.
        OutputError: The output exists, cannot be written, or would replace what the job reads.
    """
    check_sources([config.data, config.validation_data], config.data_plan)
    if "trained_model" in TASKS[config.task].needs and not os.path.isdir(config.trained_model):
        raise errors.ConfigError(
            "trained_model must be a directory, and this is not one.",
            received={"trained_model": config.trained_model},
        )
    if config.task == "predict" and not config.output:
        _require_processor(Path(config.trained_model))
    if config.init_from and not os.path.exists(config.init_from):
        raise errors.ConfigError(
            "init_from must be the directory of a trained model, or a file of weights of PyTorch,"
            " and this is neither.",
            received={"init_from": config.init_from},
        )
    output_checks.check_is_free(config)
    output_checks.check_paths(config)
    output_checks.check_can_be_written(config)


def _require_processor(trained_model: Path) -> None:
    """Check that a prediction without `output` has a processor for its outputs."""
    # Imported here: no other job needs protocol buffers or the files of a zoo at its start.
    from edl_horovod.models.parts import may_process_outputs, no_place_for_outputs
    from edl_horovod.models.trained_model_file import read_message

    zoo = trained_model / "zoo"
    try:
        model_def = read_message(trained_model).model_def
        file = lookup.file_groups(zoo, model_def)[0].files[0]
        has_processor = may_process_outputs(zoo, model_def)
    except (OSError, errors.DataError, errors.ConfigError, errors.UserCodeError):
        return  # The task reports damage of a trained model when it opens it.
    if not has_processor:
        raise no_place_for_outputs(file)


@contextlib.contextmanager
def _own_temporary_files(plan: LaunchPlan) -> Iterator[LaunchPlan]:
    """Add a folder for temporary files of the local workers to the plan; removed with the context.

    TensorFlow writes a file for each function that it converts, and removes it at the interpreter's
    end. A worker never gets there: it ends without it (`worker.__main__.end`), or is killed.
    """
    with tempfile.TemporaryDirectory(prefix="edl-", ignore_cleanup_errors=True) as folder:

        def put(command: Command | None) -> Command | None:
            if command is None or not (LOCAL_HOST in plan.hosts or plan.join):
                return command
            return replace(command, environment={**command.environment, "TMPDIR": folder})

        yield replace(plan, worker=put(plan.worker), ring=put(plan.ring))


def _run_elastic(
    plan: LaunchPlan, events: EventLog, show: Show, warm: WarmServer | None
) -> Outcome | None:
    """Run a job with a coordinator; returns its outcome, or None after a request to stop."""
    restarting: list[processes.RestartingChild] = []
    slots: Slots | None = None
    hosts_file = hosts.HostsFile(plan.job_dir.hosts)
    grace_seconds = plan.grace_seconds
    try:
        if plan.config.task == "federate":
            is_encrypted = not plan.config.federated.unencrypted
            tokens.issue(plan.job_dir.tokens, list(plan.hosts), is_encrypted=is_encrypted)
        if plan.coordinator is not None:
            coordinator = _restarting(plan, "coordinator", plan.coordinator)
            restarting.append(coordinator)
        if plan.discovery is not None:
            restarting.append(_restarting(plan, "discovery", plan.discovery))
        address = plan.join or _address(plan.job_dir, coordinator.child)
        if plan.worker is not None:
            environment = {**plan.worker.environment, "EDL_COORDINATOR": address}
            worker, logs_dir = replace(plan.worker, environment=environment), plan.job_dir.logs
            patience = plan.config.elastic.restart_backoff_seconds
            (host,) = plan.hosts
            slots = Slots(worker, logs_dir, events, backoff_seconds=patience, warm=warm, host=host)
        if plan.config.task == "federate":
            log.info("parties join at %s; their tokens are in %s", address, plan.job_dir.tokens)
        events.write(JobEvent(state="running", task=plan.config.task))
        while (ended := _outcome(plan)) is None:
            for child in restarting:
                child.keep()
            if slots is not None:
                _keep_slots(plan, hosts_file, slots)
            recorded = show()
            if slots is not None:
                slots.note(recorded)
                slots.give_up_if_hopeless(plan.config.elastic.min_np)
            if plan.job_dir.stop_request.exists():
                grace_seconds = max(grace_seconds, STOP_SECONDS)
                return None
            time.sleep(POLL_SECONDS)
        if slots is not None and isinstance(ended, Success):
            _await_dismissed(slots)
            slots.leave_server()
        return ended
    finally:
        children = [*(slots.processes if slots else []), *(worker.child for worker in restarting)]
        processes.end_all(children, seconds=grace_seconds)


def _keep_slots(plan: LaunchPlan, hosts_file: hosts.HostsFile, slots: Slots) -> None:
    """Keep as many local workers as the hosts file says."""
    if (wanted := hosts_file.change()) is not None:
        (host,) = plan.hosts
        slots.num_wanted = _num_workers(plan.config, wanted.get(host, 0))
    slots.keep()


def _num_workers(config: JobConfig, num_slots: int) -> int:
    """Number of workers for local slots; limited, as a typing error must not start thousands."""
    most = largest_ring(config)
    if num_slots > most:
        log.warning(
            "The hosts file wants %d slots of %s, but the ring can have %d ranks (elastic.max_np, "
            "and never more than there are lanes). %d workers are kept, elastic.spares=%d among "
            "them. Correct the hosts file, or see edl scale.",
            num_slots,
            LOCAL_HOST,
            most,
            hosts.num_workers(most, config.elastic.spares),
            config.elastic.spares,
        )
    return hosts.num_workers(min(num_slots, most), config.elastic.spares)


def _address(job_dir: JobDir, coordinator: Child) -> str:
    deadline = time.monotonic() + ADDRESS_SECONDS
    while (ring := saved.load(job_dir.coordinator_state)) is None:
        if coordinator.exit_code is not None or time.monotonic() > deadline:
            raise errors.JobFailed(f"The coordinator did not start. {coordinator.last_words()}")
        time.sleep(0.01)
    return f"{ring.address}:{ring.port}"


def _restarting(plan: LaunchPlan, name: str, command: Command) -> processes.RestartingChild:
    return processes.RestartingChild(
        name, command, plan.job_dir.logs, is_over=lambda: _outcome(plan) is not None
    )


def _outcome(plan: LaunchPlan) -> Outcome | None:
    return outcome.load(plan.job_dir.result)


def _await_dismissed(slots: Slots) -> None:
    """Wait up to 2 s for dismissed workers to end by themselves, before all are sent SIGTERM."""
    deadline = time.monotonic() + 2.0
    for child in slots.children:
        child.wait(max(0.0, deadline - time.monotonic()))


def _lost_rank(printed: str, members: Sequence[str], end: str) -> WorkerEvent | None:
    """The rank that ended first, as `mpirun` or a rank says; None if they say nothing of one.

    Args:
        printed: What they said last.
        members: Host and slot of each rank.
        end: How a rank ended that mpirun names.
    """
    if match := _RANK_OF_MPIRUN.search(printed):
        named, message = members[int(match[1]) :][:1], f"ended with {end}"
    elif match := _PEER_OF_MPI.search(printed):
        named = [member for member in members if member.rpartition(":")[0] == match[1]]
        message = "another rank found its connection closed"
    else:
        return None
    if len(named) != 1:  # They do not say which one of several on a host.
        return None
    return WorkerEvent(worker=named[0], state="failed", message=message)


def _run_static(plan: LaunchPlan, events: EventLog, show: Show) -> Outcome | None:
    """Run a job whose ranks one program starts; returns its outcome, or None after a stop."""
    assert plan.ring is not None
    program = Path(plan.ring.argv[0]).name
    if program == "mpirun":
        needs.require_mpi(plan.ring)
    restarting = [_restarting(plan, "discovery", plan.discovery)] if plan.discovery else []
    ring: Child | None = None
    members: tuple[str, ...] = ()
    try:
        # mpirun does not hand on the end of its standard input; ranks elsewhere get no variable.
        lifeline = str(os.getpid()) if LOCAL_HOST in plan.hosts else "stdin"
        ring = Child(plan.ring, plan.job_dir.logs / "worker.log", EDL_LIFELINE=lifeline)
        events.write(JobEvent(state="running", task=plan.config.task))
        while (code := ring.exit_code) is None:
            for child in restarting:
                child.keep()
            for _, _, event in show():
                if isinstance(event, GenerationEvent) and event.is_formed:
                    members = event.members
            if plan.job_dir.stop_request.exists():
                return None
            time.sleep(POLL_SECONDS)
    finally:
        processes.end_all([*([ring] if ring else []), *(worker.child for worker in restarting)])
    ended = _outcome(plan)
    if ended is None:
        # For a rank that a signal ended, mpirun ends like a shell: with 128 plus the signal.
        signal_code = 128 - code if code > 128 else code
        killed = processes.what_killed(signal_code, processes.Memory(ring.pid))
        end = f"{processes.exit_text(signal_code)}. {killed}".strip()
        if lost := _lost_rank(ring.tail(NUM_LINES_OF_MPI), members, end):
            events.write(lost)
        raise errors.JobFailed(
            f"{program} ended with {processes.exit_text(code)} before the job was done."
            f"{killed and ' A rank may be meant. '}{killed} {ring.last_words()}"
        )
    return ended
