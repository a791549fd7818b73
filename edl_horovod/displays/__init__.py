"""Displays of a running job, which read its events and nothing else."""

import contextlib
from collections.abc import Iterator
from importlib import import_module

from edl_horovod.extensions import Table, module_of
from edl_horovod.job.events import OnEvents, Recorded

__all__ = ["DISPLAYS", "open_displays"]

DISPLAYS = Table("displays", {"terminal": "edl_horovod.displays.terminal"}, load=module_of)
"""The module of each display that follows a job from its launcher; `open_display` in it takes the
arguments of `open_displays`. The page is served by a process of its own."""


@contextlib.contextmanager
def open_displays(*, is_quiet: bool, unit: str = "records") -> Iterator[OnEvents]:
    """Open every display of the table; what this yields shows new events in each of them.

    Args:
        is_quiet: Whether to print nothing.
        unit: What `progress` events count.
    """
    with contextlib.ExitStack() as stack:
        shows: list[OnEvents] = [
            stack.enter_context(import_module(module).open_display(is_quiet=is_quiet, unit=unit))
            for module in DISPLAYS.values()
        ]

        def show(events: list[Recorded]) -> None:
            for show_one in shows:
                show_one(events)

        yield show
