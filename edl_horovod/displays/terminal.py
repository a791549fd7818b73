"""Live progress of a job from its events: a panel on a terminal, occasional lines elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from edl_horovod.displays.text import count, notable, printable, time_left
from edl_horovod.job.events import OnEvents, ProgressEvent, Recorded, StepEvent
from edl_horovod.job.state import JobState, advance

log = logging.getLogger(__name__)

PLAIN_SECONDS = 5.0
"""Least number of seconds between two plain lines of progress."""
LIVE_SECONDS = 0.5
"""Least number of seconds between two pictures of the panel."""


@contextlib.contextmanager
def open_terminal(*, is_quiet: bool, unit: str = "records") -> Iterator[OnEvents]:
    """Open the display of a command that suits stderr: a panel on a terminal, lines elsewhere.

    Where stderr can no longer be written, as on a full disk, the command goes on without it.

    Args:
        is_quiet: Whether to show nothing.
        unit: What `progress` events count.
    """
    if is_quiet:
        yield lambda events: None
        return
    display: LiveDisplay | PlainDisplay
    display = LiveDisplay(unit) if sys.stderr.isatty() else PlainDisplay(sys.stderr, unit)
    is_usable = True

    @contextlib.contextmanager
    def while_usable() -> Iterator[None]:
        nonlocal is_usable
        try:
            yield
        except (OSError, ValueError) as error:  # A closed stream gives the second one.
            if is_usable:
                log.warning("the progress is no longer shown: %s", error)
            is_usable = False

    def show(events: list[Recorded]) -> None:
        if is_usable:
            with while_usable():
                display(events)

    opened = contextlib.ExitStack()
    with while_usable():
        opened.enter_context(display)
    try:
        yield show
    finally:
        with while_usable():
            opened.close()


def facts(state: JobState, unit: str) -> str:
    """One line about the progress of the job."""
    parts = []
    if state.total_records:
        parts.append(f"{state.records:,} of {state.total_records:,} {unit}")
        if state.made is not None:
            parts.append(f"{state.made:,} records")
    elif state.step or state.total_steps:
        of = f" of {state.total_steps:,}" if state.total_steps else ""
        parts.append(f"step {state.step:,}{of}, epoch {state.epoch + 1}")
    if state.loss is not None:
        parts.append(f"loss {state.loss:.4g}")
    if state.records_per_second is not None:
        parts.append(f"{state.records_per_second:,.0f} {unit}/s")
    if state.size:
        parts.append(count(state.size, "rank"))
    if left := time_left(state):
        parts.append(f"{left} left")
    return " | ".join(parts) or state.state


def prepare_events(show: OnEvents) -> Callable[[int, int, int], None]:
    """A progress callback for `prepare` that shows files as a job's records are shown.

    Args:
        show: A terminal that was opened with `unit="files"`.
    """

    def on_progress(done: int, total: int, num_records: int) -> None:
        progress = ProgressEvent(records=done, total_records=total, made=num_records)
        show([Recorded(time.time(), "prepare", progress)])

    return on_progress


class PlainDisplay:
    """Lines for a log file: each notable event, and the progress at most every few seconds."""

    def __init__(self, stream: TextIO, unit: str = "records") -> None:
        self._stream = stream
        self._unit = unit
        self._state = JobState()
        self._last_line_time = float("-inf")
        self._is_news = False

    def __call__(self, events: list[Recorded]) -> None:
        """Show new events."""
        for recorded in events:
            self._state = advance(self._state, recorded)
            if text := notable(recorded.event):
                self._print(text)
            if isinstance(recorded.event, StepEvent | ProgressEvent):
                self._is_news = True
                # A clock that was set back must not suppress the lines until it has caught up.
                if not 0 <= recorded.time - self._last_line_time < PLAIN_SECONDS:
                    self._print_facts(recorded.time)

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_news:
            self._print_facts(self._last_line_time)

    def _print_facts(self, now: float) -> None:
        self._print(facts(self._state, self._unit))
        self._last_line_time = now
        self._is_news = False

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveDisplay:
    """A panel on a terminal, as `edl top` shows it, with the notable events as lines above it."""

    def __init__(self, unit: str = "records") -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._unit = unit
        self._state = JobState(state="starting")
        self._shown_at = float("-inf")

    def __call__(self, events: list[Recorded]) -> None:
        """Show new events."""
        for recorded in events:
            self._state = advance(self._state, recorded)
            if text := notable(recorded.event):
                self._live.console.print(printable(text), markup=False, highlight=False)
        if not 0 <= time.monotonic() - self._shown_at < LIVE_SECONDS:
            self._show()

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        # The panel is gone: what follows says how the job ended.
        self._live.console.print(facts(self._state, self._unit), markup=False, highlight=False)

    def _show(self) -> None:
        from rich.console import Group
        from rich.text import Text

        from edl_horovod.displays.top import state_parts

        heading = Text(facts(self._state, self._unit))
        parts = state_parts(self._state, None, now=time.time())
        self._live.update(Group(heading, *parts), refresh=True)
        self._shown_at = time.monotonic()
