"""How the build is shown: a bar on a terminal, and lines in a log."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_PERCENT_PER_LINE = 20


class Display:
    """Writes lines for people."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        """Write a line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    @contextlib.contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int], None]]:
        """Show how far something is; yields a function that takes the percentage."""
        if self._stream.isatty():
            with self._bar(title) as show:
                yield show
        else:
            yield self._lines(title)

    @contextlib.contextmanager
    def _bar(self, title: str) -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(file=self._stream), transient=True) as bar:
            task = bar.add_task(title, total=100)
            yield lambda percentage: bar.update(task, completed=percentage)

    def _lines(self, title: str) -> Callable[[int], None]:
        began, next_percentage = time.monotonic(), _PERCENT_PER_LINE

        def show(percentage: int) -> None:
            nonlocal next_percentage
            if percentage >= next_percentage:
                self.say(f"{title}: {percentage} %, {time.monotonic() - began:.0f} s")
                next_percentage = percentage - percentage % _PERCENT_PER_LINE + _PERCENT_PER_LINE

        return show
