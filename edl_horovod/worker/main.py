"""The process of one rank: `python -m edl_horovod.worker --config config.yaml`.

It gets warm first (imports, model, traced steps, open data), and only then asks for a place in a
ring. Who deals the places shows in its environment: the job's coordinator, horovodrun, or mpirun.
"""

import argparse
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, EdlError
from edl_horovod.job import fork_server
from edl_horovod.job import log as logs
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.job.places import check_is_free, check_places

if TYPE_CHECKING:
    from edl_horovod.ring.loop import Work
    from edl_horovod.ring.membership.base import Membership

__all__ = ["code_of_main", "end", "main"]

log = logging.getLogger("edl_horovod.worker")  # Run as a program, it is called __main__.

READY_VARIABLE = "EDL_READY_FILE"
EXIT_FOR_ANOTHER = 75
"""Beyond the codes of `EdlError`: dismissed, but a worker that is warm again would be of use."""
SLOW_END_SECONDS = 30.0
"""A worker that is dismissed and still there shows where its threads are, in its log."""
LAST_WORDS_SECONDS = 5.0
"""Longest wait for whoever reads this process' output."""


def main() -> int:
    """Be a worker until dismissed; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    parser.add_argument(
        "--wait", action="store_true", help="get warm, then wait for edl_horovod.worker.shim"
    )
    parser.add_argument(
        "--fork-server", type=int, metavar="FD", help="be forked as often as is asked over a socket"
    )
    args = parser.parse_args()
    if args.fork_server is not None:
        _import_all()
        fork_server.serve(socket.socket(fileno=args.fork_server))
        # From here on this is a worker like any other: the server itself never comes back.
    faulthandler.enable()
    name = _name()
    end_with_parent()
    _begin_as_main_process()
    try:
        config = resolved.load(args.config)
        logs.setup(name, level=config.log_level)
        _import_all()
        return (_work_when_launched if args.wait else _work)(config, args.config)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def _import_all() -> None:
    """Import what takes long: nothing of the user's, and nothing that starts a thread."""
    _set_defaults()
    gc.disable()
    try:
        importlib.import_module("horovod.tensorflow")
        for name in ("ring.membership.coordinated", "ring.loop", "tasks.warm"):
            importlib.import_module(f"edl_horovod.{name}")
        # It lives as long as the process: nobody need look through it for garbage ever again.
        gc.freeze()
    finally:
        gc.enable()


def _begin_as_main_process() -> None:
    """What a worker must see to where it is a container's main process."""
    if os.getpid() == 1:
        # The kernel keeps a signal from process 1 that has no handler for it.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if READY_VARIABLE in os.environ:
        Path(os.environ[READY_VARIABLE]).unlink(missing_ok=True)  # Of a process that was killed.


@contextlib.contextmanager
def _shown_as_ready() -> Iterator[None]:
    """Show a pod's readiness probe that this worker is warm, by a file that is there meanwhile."""
    if READY_VARIABLE not in os.environ:
        yield
        return
    path = Path(os.environ[READY_VARIABLE])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _name() -> str:
    host = os.environ.get("EDL_HOST") or os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    slot = os.environ.get("EDL_SLOT") or os.environ.get("HOROVOD_LOCAL_RANK")
    return f"{host}:{slot or os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK', '0')}"


def _set_defaults() -> None:
    # Read at import by TensorFlow, and at every trace of a collective by Horovod.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    os.environ["HOROVOD_ELASTIC"] = "1"


def _work(config: JobConfig, path: Path) -> int:
    from edl_horovod.tasks.warm import make_warm

    with _events(config, path, _name()) as events:
        is_final = _be_rank(config, events, make_warm(config, events))
    # A container that ends with 0 is not started again.
    return 0 if is_final or READY_VARIABLE not in os.environ else EXIT_FOR_ANOTHER


def _work_when_launched(config: JobConfig, path: Path) -> int:
    """Get warm before horovodrun launches this rank; its shim then says which one it is."""
    from edl_horovod.job.handover import wait_for_place
    from edl_horovod.tasks.warm import make_warm

    slot = int(os.environ.get("EDL_SLOT", "0"))
    with (
        _events(config, path, f"{socket.gethostname()}:{slot}") as events,
        make_warm(config, events) as work,
    ):
        launched = wait_for_place(path, slot=slot)
        os.environ.update(launched.variables)
        logs.setup(_name(), level=config.log_level)
        launched.follow()
        try:
            _be_rank(config, events, contextlib.nullcontext(work))
            code = 0
        except EdlError as error:
            log.error("%s", error)
            code = error.exit_code
        launched.say_exit(code)
    return code


def _events(config: JobConfig, path: Path, name: str) -> EventLog:
    job_dir = JobDir.of(config)
    job_dir.enter(path)
    if not _has_launcher():
        check_places(config)
    return EventLog(job_dir.events, name)


def _has_launcher() -> bool:
    """Whether a launcher of ours has looked at the job; under plain horovodrun none need have."""
    return bool({"EDL_COORDINATOR", "EDL_MEMBERSHIP"} & {*os.environ})


def _be_rank(
    config: JobConfig, events: EventLog, warm: contextlib.AbstractContextManager["Work"]
) -> bool:
    """Work as a rank until dismissed or done; returns whether no other is needed in its place."""
    from edl_horovod.ring.loop import run
    from edl_horovod.ring.membership.base import Dismissed

    if not _has_launcher():
        check_is_free(config)  # At their end ranks ask only for other jobs' results.
    with contextlib.ExitStack() as stack:
        membership = _membership(config, events)
        stack.callback(membership.close)
        _leave_on_sigterm(membership)
        try:
            work = stack.enter_context(warm)
            stack.enter_context(_shown_as_ready())
            membership.finished(run(work, membership, events))
        except Dismissed as dismissal:
            log.info("dismissed: %s", dismissal)
            faulthandler.dump_traceback_later(SLOW_END_SECONDS)
            return dismissal.is_final
        except EdlError as error:
            membership.report_error(error)
            raise
    return True


def _membership(config: JobConfig, events: EventLog) -> "Membership":
    from edl_horovod.frameworks.horovod import complaint
    from edl_horovod.frameworks.keras.collectives import HOROVOD

    if os.environ.get("EDL_MEMBERSHIP") == "static":
        from edl_horovod.ring.membership.base import StaticMembership

        return StaticMembership(HOROVOD, JobDir.of(config).result)
    if missing := complaint(HOROVOD.patch_version()):
        log.warning("%s", missing)
    if "EDL_COORDINATOR" in os.environ:
        from edl_horovod.ring.membership.coordinated import (
            CoordinatedMembership,
            CoordinatorAddress,
        )

        host, _, port = os.environ["EDL_COORDINATOR"].rpartition(":")
        address = CoordinatorAddress(
            host=host,
            port=int(port),
            secret=Path(os.environ["EDL_SECRET_FILE"]).read_bytes(),
            worker_host=os.environ["EDL_HOST"],
            slot=int(os.environ["EDL_SLOT"]),
        )
        return CoordinatedMembership(
            HOROVOD,
            address,
            forming_seconds=config.elastic.forming_seconds,
            # In a cluster the coordinator's pod may still be waiting for a node.
            first_seconds=config.elastic.wait_seconds,
            away_seconds=config.elastic.coordinator_away_seconds,
        )
    from edl_horovod.ring.membership.horovodrun import HorovodDriverMembership
    from edl_horovod.worker.environment import WorkerEnvironment

    environment = WorkerEnvironment.of(os.environ)
    if environment.driver_place is None:
        raise ConfigError(
            "A worker is started by a launcher, which tells it where its ring is. Received: no "
            "EDL_COORDINATOR and no HOROVOD_GLOO_RENDEZVOUS_ADDR in the environment. Use "
            "`edl train`, or `horovodrun ... python -m edl_horovod.worker --config ...`."
        )
    return HorovodDriverMembership(
        HOROVOD,
        environment.driver_place,
        timeout_seconds=environment.driver_timeout_seconds,
        events=events,
        result=JobDir.of(config).result,
    )


def _leave_on_sigterm(membership: "Membership") -> None:
    """Leave before being killed: at the next step, and then end with 0."""

    def leave(_signal: int, _frame: object) -> None:
        # In a thread of its own: the interrupted code may be sending a message just now.
        threading.Thread(target=membership.leave_soon, daemon=True).start()

    signal.signal(signal.SIGTERM, leave)


def code_of_main() -> int:
    """The exit code of `main`, whatever it raises."""
    try:
        return main()
    except SystemExit as ending:  # Of argparse.
        return int(ending.code or 0)
    except BaseException:  # The interpreter would print it and end, and that end may never come.
        traceback.print_exc()
        return 1


def end(code: int) -> NoReturn:
    """End this process, at once: everything that must be closed is.

    The interpreter's own end would destroy TensorFlow's iterators, which wait for their threads,
    and a thread that is about to run the user's Python waits for the interpreter: for ever. An
    error here would lead there, too; and who is to read the output may be gone, or stuck.
    """
    last = threading.Timer(LAST_WORDS_SECONDS, os._exit, [code])
    last.daemon = True
    last.start()
    for say in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError):
            say()
    os._exit(code)
