"""The jobs below a folder, those that ended included, as one page lists them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from edl_horovod.displays.page.rendering import View, clock, quoted, section
from edl_horovod.displays.page.snapshot import JobSnapshot, Source
from edl_horovod.displays.text import ago, goodput_text, metrics_text
from edl_horovod.errors import EdlError

_FIND_SECONDS = 5.0
"""Time between two searches for jobs."""
_LOOK_SECONDS = 1.0
"""How long a look may read jobs that were not read before; the next one goes on."""
_HEADER = ("job", "state", "ranks", "done", "loss", "metrics", "goodput", "began", "age")


@dataclass(frozen=True)
class JobList:
    """The jobs at one moment."""

    time: float
    """Seconds since the epoch."""
    jobs: tuple[tuple[str, JobSnapshot | None], ...] = ()
    """Paths and states, the newest first; None for a job that was not read yet."""
    problem: str = ""


class Folder:
    """A folder with jobs; each is read by one source, however many pages show it."""

    look_seconds = 1.0

    def __init__(
        self, name: str, find: Callable[[], Iterable[str]], open_source: Callable[[str], Source]
    ) -> None:
        """Search for nothing yet.

        Args:
            name: The folder, for people.
            find: Finds the paths of the jobs below the folder, relative to it.
            open_source: Opens the job at such a path.
        """
        self.name = name
        self._find, self._open = find, open_source
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._last: dict[str, JobSnapshot] = {}
        self._searched: float | None = None

    def source(self, path: str) -> Source | None:
        """The job at a path; None if there is no such job."""
        with self._lock:
            if path not in self._sources:
                with contextlib.suppress(EdlError, OSError):  # The list of jobs says why.
                    self._search_if_due()
            return self._sources.get(path)

    def snapshot(self) -> JobList:
        """Look at all jobs; those that were not read yet are read as far as the time goes."""
        now, problem = time.monotonic(), ""
        with self._lock:
            try:
                self._search_if_due()
            except (EdlError, OSError) as error:
                problem = str(error)
            sources = dict(self._sources)
            last = dict(self._last)
        for path, source in sources.items():
            if path in last or time.monotonic() - now < _LOOK_SECONDS:
                last[path] = source.snapshot()  # Without the lock, which the page of a job takes.
        with self._lock:
            self._last = last
        jobs = sorted(
            ((path, last.get(path)) for path in sources),
            key=lambda job: (-(job[1].began or 0.0) if job[1] is not None else 0.0, job[0]),
        )
        return JobList(time.time(), tuple(jobs), problem)

    def _search_if_due(self) -> None:
        if self._searched is not None and time.monotonic() - self._searched < _FIND_SECONDS:
            return
        paths = list(self._find())
        self._sources = {path: self._sources.get(path) or self._open(path) for path in paths}
        self._last = {path: last for path, last in self._last.items() if path in self._sources}
        self._searched = time.monotonic()


def list_view(name: str, jobs: JobList, *, now: float) -> View:
    """The page of a folder's jobs; `now` is in seconds since the epoch."""
    rows = [_row(path, snapshot, now) for path, snapshot in jobs.jobs]
    sections = {
        "head": section("head", f"Jobs below {name}"),
        "problem": section("problem", jobs.problem),
        "jobs": section("jobs", _HEADER, rows),
    }
    return View(f"jobs - {name}", sections)


def _row(path: str, snapshot: JobSnapshot | None, now: float) -> dict[str, Any]:
    row = {"name": path, "target": f"/job/{quoted(path)}/"}
    if snapshot is None:
        return {**row, "state": "not read yet", "cells": ()}
    state = snapshot.state
    if state is None:
        return {**row, "state": "unknown", "cells": (snapshot.problem,)}
    began = snapshot.began
    cells = (
        f"{0 if snapshot.is_over else state.size}",
        f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}",
        "" if state.loss is None else f"{state.loss:.4g}",
        metrics_text(state.metrics) if state.metrics else "",
        goodput_text(state.account),
        "" if began is None else clock(began),
        "" if began is None else ago(began, snapshot.ended or now),
    )
    return {**row, "state": (snapshot.details or state).state, "cells": cells}
