"""The displays that follow a job from its launcher, and their table.

Each has a thread of its own, because its client may wait for a server.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.extensions import Table, module_of
from edl_horovod.job.events import OnEvents, Recorded

__all__ = ["DISPLAYS", "load", "open_displays", "require_known"]

log = logging.getLogger(__name__)

DISPLAYS = Table(
    "displays",
    {
        "mlflow": "edl_horovod.displays.mlflow",
        "opentelemetry": "edl_horovod.displays.opentelemetry",
        "tensorboard": "edl_horovod.displays.tensorboard",
        "wandb": "edl_horovod.displays.wandb",
    },
    load=module_of,
)
"""The module of each display; `open_display` in it takes the settings of a job, and gives a context
with a function of new events. Its import raises MissingDependency where a package is missing."""

PAUSE_SECONDS = 1.0
"""Least time between two calls of a display, which then gets all events since the last one."""
CLOSE_SECONDS = 30.0
"""How long all displays may take to send the last events when a job has ended."""
_MOST_WAITING = 10_000
"""Lists of events for which a display may be late; a job makes at most ten of them a second."""


def require_known(names: Sequence[str]) -> None:
    """Refuse the setting `displays` if it names what is not in the table.

    Raises:
        ConfigError: There is no such display.
    """
    for name in names:
        if name not in DISPLAYS:
            raise ConfigError(
                f"displays must be names of {', '.join(DISPLAYS)}; the terminal is shown without"
                " this setting.",
                received={"displays": list(names)},
                hint=did_you_mean(name, DISPLAYS),
            )


def load(names: Sequence[str]) -> dict[str, ModuleType]:
    """Import the modules of displays, by name, for `open_displays`.

    Raises:
        ConfigError: There is no such display.
        MissingDependency: The package of one is not installed.
    """
    require_known(names)
    return {name: import_module(DISPLAYS[name]) for name in names}


@contextlib.contextmanager
def open_displays(modules: Mapping[str, ModuleType], config: JobConfig) -> Iterator[OnEvents]:
    """Open displays of a job; what this yields shows new events in each of them.

    A display that fails says so once, and the job goes on without it.

    Args:
        modules: What `load` returned.
        config: The settings of the job, whose directory exists.
    """
    followers = [_Follower(name, module, config) for name, module in modules.items()]

    def show(events: list[Recorded]) -> None:
        for follower in followers:
            follower.show(events)

    for follower in followers:
        follower.start()
    try:
        yield show
    finally:
        for follower in followers:
            follower.end()
        deadline = time.monotonic() + CLOSE_SECONDS
        for follower in followers:
            follower.wait(deadline)


class _Follower:
    """One display, in its thread."""

    def __init__(self, name: str, module: ModuleType, config: JobConfig) -> None:
        self._name, self._module, self._config = name, module, config
        self._events: queue.Queue[list[Recorded]] = queue.Queue(_MOST_WAITING)
        self._is_ending = threading.Event()
        self._problem = ""
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name=f"display {name}", daemon=True)

    def start(self) -> None:
        """Open the display; this does not wait for it."""
        self._thread.start()

    def show(self, events: list[Recorded]) -> None:
        """Hand over new events."""
        if not self._problem:
            try:
                self._events.put_nowait(events)
            except queue.Full:
                self._problem = "it does not take the job's events as fast as they come"
        self._tell()

    def end(self) -> None:
        """Let the display end after all events that it has."""
        self._is_ending.set()

    def wait(self, deadline: float) -> None:
        """Wait until it has ended, at most until a time of `time.monotonic`."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._problem = self._problem or (
                f"it was not done {CLOSE_SECONDS:g} s after the job; its last values are missing"
            )
        self._tell()

    def _run(self) -> None:
        try:
            with self._module.open_display(self._config) as show:
                while not self._problem:
                    # Seen before the events are: what comes later is none of the job's any more.
                    is_last = self._is_ending.wait(PAUSE_SECONDS)
                    if events := self._waiting_events():
                        show(events)
                    if is_last:
                        return
        # The edge of a thread, and of a client that may raise anything; it must not end the job.
        except Exception as error:
            log.debug("the display %s", self._name, exc_info=True)
            self._problem = self._problem or f"{type(error).__name__}: {error}"

    def _waiting_events(self) -> list[Recorded]:
        events: list[Recorded] = []
        with contextlib.suppress(queue.Empty):
            while True:
                events += self._events.get_nowait()
        return events

    def _tell(self) -> None:
        """Log a failure once; the launcher's log has what the launcher's own thread says."""
        if self._problem and not self._is_told:
            self._is_told = True
            log.warning(
                "the display %s failed, and the job goes on without it: %s",
                self._name,
                self._problem,
            )
