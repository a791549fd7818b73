"""One job on this machine, from its directory to its result."""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from edl_horovod import checkpoint_files, errors
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator import hosts
from edl_horovod.coordinator.decide import num_workers
from edl_horovod.data.files import expand
from edl_horovod.data.formats import format_of
from edl_horovod.errors import (
    ConfigError,
    EdlError,
    Interrupted,
    JobFailed,
    MissingDependency,
    OutputError,
)
from edl_horovod.events import EventLog, follow
from edl_horovod.launch import checkpoints
from edl_horovod.launch.plan import LOCAL_HOST, LaunchPlan, make_plan
from edl_horovod.launch.processes import Child, end_all
from edl_horovod.launch.slots import Slots
from edl_horovod.models import git_zoo, lookup
from edl_horovod.output_dir import check_output

__all__ = ["JobResult", "run"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ADDRESS_SECONDS = 30.0
HOPELESS_FAILURES = 3
"""Failures of one slot in a row, without progress of the job, after which it is given up."""
HOPELESS_RESTARTS = 8
"""Ends of the coordinator within QUICK_SECONDS after which it is given up."""
QUICK_SECONDS = 30.0

PROGRESS = ("step", "evaluation", "progress")
"""Kinds of events that show that the job gets on."""

OnEvents = Callable[[list[dict[str, Any]]], None]
Show = Callable[[], list[dict[str, Any]]]
"""Shows the events since the last time, and returns them."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended well."""

    output: str
    """Path of what it made; empty for `evaluate`."""
    job_dir: str
    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Wall time of the whole job."""


def run(config: JobConfig, *, on_events: OnEvents | None = None) -> JobResult:
    """Run a job to its end.

    Args:
        config: The job, resolved.
        on_events: Called with new events of the job, several times a second.

    Raises:
        EdlError: The job did not reach its result; the subclass says what kind of reason.
    """
    plan = make_plan(config)
    began = time.monotonic()
    check_inputs(plan.config)
    plan = replace(plan, config=_with_local_zoo(plan.config))
    with _job_directory(plan), EventLog(plan.job_dir / "events.jsonl", "launcher") as events:
        events.write("job", state="starting", task=config.task, message="", output=config.output)
        new_events = follow(plan.job_dir / "events.jsonl")

        def show() -> list[dict[str, Any]]:
            found = next(new_events)
            if on_events is not None and found:
                on_events(found)
            return found

        try:
            with _signals_interrupt():
                make = _run_static if plan.coordinator is None else _run_elastic
                result = make(plan, events, show)
        except EdlError as error:
            events.write("job", state="failed", task=config.task, message=str(error))
            show()
            raise
        except KeyboardInterrupt as error:
            events.write("job", state="failed", task=config.task, message="interrupted")
            show()
            raise Interrupted("The job was interrupted; all its processes have ended.") from error
        events.write("job", state="finished", task=config.task, message="", **_shown(result))
        show()
    return JobResult(
        output=str(result.get("output", "")),
        job_dir=str(plan.job_dir),
        steps=int(result["steps"]),
        metrics=result["metrics"],
        seconds=time.monotonic() - began,
    )


def check_inputs(config: JobConfig) -> None:
    """Find what can be found wrong before anything starts.

    Raises:
        DataError: A glob matches nothing, or the files are of more than one record format.
        ConfigError: The model zoo or the trained model is not there.
        OutputError: The output exists.
    """
    files = expand(config.data)
    if config.validation_data:
        files += expand(config.validation_data)
    format_of(files)
    if config.task == "train":
        if git_zoo.parse(config.model_zoo) is None:
            lookup.require_zoo(config.model_zoo)
    elif not Path(config.trained_model).is_dir():
        raise ConfigError(
            "trained_model must be a directory. "
            f"Received: trained_model={config.trained_model!r}, which is not one."
        )
    if config.init_from and not Path(config.init_from).is_dir():
        raise ConfigError(
            "init_from must be the directory of a trained model. "
            f"Received: init_from={config.init_from!r}, which is no directory."
        )
    if config.output:
        check_output(Path(config.output), overwrite=config.overwrite)


def _with_local_zoo(config: JobConfig) -> JobConfig:
    """The config with a model zoo that every rank can read; one in Git is fetched here, once."""
    if config.task != "train":
        return config
    zoo = git_zoo.bring(config.model_zoo)
    lookup.places(lookup.require_zoo(str(zoo.path)), config.model_def)
    return replace(
        config, model_zoo=str(zoo.path), model_zoo_source=zoo.source, model_zoo_commit=zoo.commit
    )


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("steps", "metrics", "output") if name in result}


@contextlib.contextmanager
def _job_directory(plan: LaunchPlan) -> Iterator[None]:
    """The job's directory, emptied of an earlier job's traces, held for this one."""
    job_dir = plan.job_dir
    with _told_as_output_error(job_dir):
        job_dir.mkdir(parents=True, exist_ok=True)
        # Opened for appending: another job's number must stay readable until the lock is ours.
        lock = (job_dir / "launcher.pid").open("a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Another job runs in {job_dir}. Received: job_dir={str(job_dir)!r}. "
                "Wait for it, or choose another output or job_dir."
            ) from error
        try:
            with _told_as_output_error(job_dir):
                if plan.config.task == "train":
                    checkpoints.settle(plan.config, job_dir)
                _fill_job_directory(plan, lock)
            yield
        finally:
            (job_dir / "secret").unlink(missing_ok=True)
            (job_dir / "launcher.pid").unlink(missing_ok=True)


@contextlib.contextmanager
def _told_as_output_error(job_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"The job's directory cannot be written: {error}. Received: job_dir={str(job_dir)!r}. "
            "Make room on its disk, or give another job_dir."
        ) from error


def _fill_job_directory(plan: LaunchPlan, lock: TextIO) -> None:
    job_dir = plan.job_dir
    for name in ("events.jsonl", "coordinator.json", "result.json", "hosts"):
        (job_dir / name).unlink(missing_ok=True)
    old = ["logs", "segments"]
    if not checkpoint_files.steps_in(checkpoint_files.folder_of(job_dir)):
        old.append("ledger")  # A job that goes on goes on with its ledger.
    for name in old:
        shutil.rmtree(job_dir / name, ignore_errors=True)
    lock.truncate(0)
    os.write(lock.fileno(), f"{os.getpid()}\n".encode())  # Nothing may be left for `close`.
    (job_dir / "logs").mkdir()
    secret = job_dir / "secret"
    secret.unlink(missing_ok=True)
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(32))
    hosts.write(job_dir / "hosts", plan.hosts)
    resolved.dump(plan.config, job_dir / "config.yaml")


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does, unless the program around us has its own plans for it.

    Where that handler raises or ends the process, the children end too.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_elastic(plan: LaunchPlan, events: EventLog, show: Show) -> dict[str, Any]:
    assert plan.coordinator is not None
    logs = plan.job_dir / "logs"
    coordinator = Child(plan.coordinator, logs / "coordinator.log")
    slots: Slots | None = None
    try:
        address = _address(plan.job_dir, coordinator)
        environment = {**plan.worker.environment, "EDL_COORDINATOR": address}
        worker = replace(plan.worker, environment=environment)
        slots = Slots(
            worker, logs, events, backoff_seconds=plan.config.elastic.restart_backoff_seconds
        )
        events.write("job", state="running", task=plan.config.task, message="")
        restarts = _Restarts()
        while (result := _result(plan.job_dir)) is None:
            if coordinator.exit_code is not None and _result(plan.job_dir) is None:
                restarts.count(coordinator)
                coordinator.close()
                coordinator = Child(plan.coordinator, logs / "coordinator.log")
            with contextlib.suppress(OSError, ConfigError):  # The coordinator logs what is wrong.
                wanted = hosts.read(plan.job_dir / "hosts").get(LOCAL_HOST, 0)
                slots.num_wanted = num_workers(wanted, plan.config.elastic.spares)
            slots.keep()
            _note(show(), slots)
            _give_up_if_hopeless(slots, plan.config.elastic.min_np)
            time.sleep(POLL_SECONDS)
        return _unwrap(result, slots)
    finally:
        end_all([*(slots.children if slots else []), coordinator])


class _Restarts:
    """Ends of the coordinator in quick succession; too many of them end the job."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def count(self, coordinator: Child) -> None:
        """Note one more, and wait a little before the next start: its port may be taken."""
        if coordinator.exit_code == OutputError.exit_code:
            raise OutputError(
                f"The job's directory cannot be written any more. The coordinator's log "
                f"({coordinator.log_path}) ends:\n{coordinator.tail()}\nMake room on the disk."
            )
        now = time.monotonic()
        self._ends = [*(at for at in self._ends if now - at < QUICK_SECONDS), now]
        if len(self._ends) >= HOPELESS_RESTARTS:
            raise JobFailed(
                f"The coordinator ended {len(self._ends)} times within {QUICK_SECONDS:.0f} s. "
                f"Its log ({coordinator.log_path}) ends:\n{coordinator.tail()}"
            )
        wait = min(0.2 * (len(self._ends) - 1), 2.0)
        log.warning("the coordinator ended with %s; it starts again", coordinator.exit_code)
        time.sleep(wait)


def _address(job_dir: Path, coordinator: Child) -> str:
    deadline = time.monotonic() + ADDRESS_SECONDS
    path = job_dir / "coordinator.json"
    while not path.exists():
        if coordinator.exit_code is not None or time.monotonic() > deadline:
            raise JobFailed(f"The coordinator did not start. Its log ends:\n{coordinator.tail()}")
        time.sleep(0.01)
    state = json.loads(path.read_text())
    return f"{state['address']}:{state['port']}"


def _result(job_dir: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((job_dir / "result.json").read_text())
    except FileNotFoundError:
        return None
    return found


def _note(events: list[dict[str, Any]], slots: Slots) -> None:
    for event in events:
        if event["kind"] == "generation" and event["is_formed"]:
            slots.note_ring(event["members"])
        elif event["kind"] == "worker" and event["state"] == "hung":
            slots.note_hung(event["worker"], event["pid"])
        elif event["kind"] in PROGRESS:
            slots.forgive()


def _give_up_if_hopeless(slots: Slots, min_np: int) -> None:
    """End a job whose workers only fail; not one that goes on in a long step without the failing.

    Raises:
        JobFailed: A slot failed again and again, and the others are too few for a ring.
    """
    failures, child = slots.most_vain_failures()
    if failures >= HOPELESS_FAILURES and child is not None and slots.num_healthy() < min_np:
        raise JobFailed(
            f"A worker ended {failures} times in a row while the job made no progress. "
            f"Its log ({child.log_path}) ends:\n{child.tail()}"
        )


def _unwrap(result: dict[str, Any], slots: Slots) -> dict[str, Any]:
    """A good result, or the error that a worker reported, as the class it had there."""
    if result["state"] == "finished":
        # The workers were dismissed; let them go before anybody is told to end.
        deadline = time.monotonic() + 2.0
        for child in slots.children:
            child.wait(max(0.0, deadline - time.monotonic()))
        return result
    kind = getattr(errors, str(result.get("error")), JobFailed)
    raise kind(result.get("message", "The job failed."))


def _run_static(plan: LaunchPlan, events: EventLog, show: Show) -> dict[str, Any]:
    logs = plan.job_dir / "logs"
    _require_mpi()
    ring = Child(plan.worker, logs / "worker.log")
    events.write("job", state="running", task=plan.config.task, message="")
    try:
        while ring.exit_code is None:
            show()
            time.sleep(POLL_SECONDS)
    finally:
        end_all([ring])
    result = _result(plan.job_dir)
    if result is None:
        raise JobFailed(
            f"The static ring ended with {ring.exit_code}. Its log ({ring.log_path}) ends:\n"
            f"{ring.tail()}"
        )
    if result["state"] == "finished":
        return result
    raise getattr(errors, str(result.get("error")), JobFailed)(result.get("message", ""))


def _require_mpi() -> None:
    if shutil.which("mpirun") is None or _is_missing("mpi4py"):
        raise MissingDependency(
            "launch=mpi needs mpirun and mpi4py, and one of them is not here. "
            "Install them: pip install 'edl_horovod[mpi]' (then build Horovod again), "
            "or use launch=local, which needs no MPI."
        )


def _is_missing(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is None
