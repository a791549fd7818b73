"""The jobs below a folder and in clusters, those that ended included, as one page lists them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.page.comparison import settings_table, shown_settings
from edl_horovod.displays.page.rendering import View, chart_of, quoted, section
from edl_horovod.displays.page.snapshot import DirectorySource, JobSnapshot, Source, few
from edl_horovod.displays.text import ago, clock, goodput_text, metrics_text
from edl_horovod.errors import EdlError

FIND_SECONDS = 5.0
"""Time between two searches for jobs, and between two lists of those that are elsewhere."""
_LOOK_SECONDS = 1.0
"""How long a look may read jobs that were not read before; the next one goes on."""
MAX_COMPARED = 50
"""Most jobs that are compared on their list."""
_HEADER = ("job", "state", "ranks", "done", "loss", "metrics", "goodput", "began", "age")


@dataclass(frozen=True)
class JobList:
    """The jobs at one moment."""

    time: float
    """Seconds since the epoch."""
    jobs: tuple[tuple[str, JobSnapshot | None], ...] = ()
    """Paths and states; None for a job that was not read yet."""
    problem: str = ""
    """The reason why the search for jobs failed."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names of the jobs on their own pages, by their paths; only of jobs of a folder."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of the jobs that are compared, by path and key."""
    late: str = ""
    """For how long a newer list has been waited for; empty where that is no long time."""


@dataclass(frozen=True)
class ListedJob:
    """A job elsewhere, as far as a list of jobs there tells."""

    name: str
    snapshot: JobSnapshot
    open: Callable[[], Source]


ListJobs = Callable[[], Iterable[ListedJob]]
"""Lists the jobs of one place."""


class Folder:
    """A folder with jobs; each is read by one source, however many pages show it."""

    look_seconds = 1.0

    def __init__(
        self,
        name: str,
        find: Callable[[], Iterable[str]],
        open_source: Callable[[str], DirectorySource],
        elsewhere: Mapping[str, ListJobs] | None = None,
    ) -> None:
        """Search for nothing yet.

        Args:
            name: The folder, for people.
            find: Finds the paths of the jobs below the folder, relative to it.
            open_source: Opens the job at such a path.
            elsewhere: Lists further jobs, as those in a cluster, by the kind of place, with which
                their paths begin.
        """
        self.name = name
        self._find, self._open, self._list_elsewhere = find, open_source, elsewhere or {}
        self._lock = threading.Lock()
        self._sources: dict[str, DirectorySource] = {}
        self._last: dict[str, JobSnapshot] = {}
        self._settings: dict[str, tuple[JobConfig, dict[str, str]]] = {}
        """Those of the jobs that are compared, as they are and as they are shown."""
        self._searched: float | None = None
        self._listed = {kind: dict[str, ListedJob]() for kind in self._list_elsewhere}
        """The jobs elsewhere by kind of place and path; threads only replace its values."""
        self._listed_at = dict.fromkeys(self._list_elsewhere, float("-inf"))

    @property
    def kinds_elsewhere(self) -> tuple[str, ...]:
        """The kinds of places elsewhere, for `elsewhere`."""
        return tuple(self._list_elsewhere)

    def source(self, path: str) -> Source | None:
        """The job at a path; None if there is no such job."""
        with self._lock:
            if path not in self._sources:
                with contextlib.suppress(EdlError, OSError):  # The list of jobs says why.
                    self._search_if_due()
            if path in self._sources:
                return self._sources[path]
        kind = path.partition(":")[0]
        if kind not in self._listed:
            return None
        is_due = time.monotonic() - self._listed_at[kind] >= FIND_SECONDS
        if path not in self._listed[kind] and is_due:
            self.elsewhere(kind)
        job = self._listed[kind].get(path)
        return None if job is None else job.open()

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
        are_compared, shown = _are_compared(sources), dict[str, tuple[JobConfig, dict[str, str]]]()
        for path, source in sources.items():
            if path in last or time.monotonic() - now < _LOOK_SECONDS:
                last[path] = source.overview()  # Without the lock, which the page of a job takes.
                if are_compared:
                    with contextlib.suppress(EdlError, OSError):  # The list says why.
                        shown[path] = self._settings_of(path, source)
        self._settings = shown
        with self._lock:
            self._last = last
        jobs = tuple((path, last.get(path)) for path in sources)
        names = {path: source.name for path, source in sources.items()}
        settings = {path: of_job for path, (_, of_job) in shown.items()}
        return JobList(time.time(), jobs, problem, names, settings)

    def elsewhere(self, kind: str) -> JobList:
        """List the jobs of a kind of place; one that refuses has its last list, and the reason.

        This may take long, so neither the jobs of the folder nor other places wait for it.
        """
        problem = ""
        self._listed_at[kind] = time.monotonic()
        try:
            listed = self._list_elsewhere[kind]()
            self._listed[kind] = {f"{kind}:{job.name}": job for job in listed}
        except (EdlError, OSError) as error:  # A command that lists them may not start.
            problem = str(error)
        jobs = ((path, job.snapshot) for path, job in self._listed[kind].items())
        return JobList(time.time(), tuple(jobs), problem)

    def _settings_of(self, path: str, source: DirectorySource) -> tuple[JobConfig, dict[str, str]]:
        config, last = source.config(), self._settings.get(path)
        if last is not None and last[0] is config:
            return last
        return config, shown_settings(config)

    def _search_if_due(self) -> None:
        if self._searched is not None and time.monotonic() - self._searched < FIND_SECONDS:
            return
        paths = list(self._find())
        self._sources = {path: self._sources.get(path) or self._open(path) for path in paths}
        self._last = {path: last for path, last in self._last.items() if path in self._sources}
        self._searched = time.monotonic()


def _are_compared(paths: Iterable[str]) -> bool:
    """Whether these are the jobs of one folder, as those of a sweep, and not too many."""
    folders = [os.path.dirname(path) for path in paths]
    return 1 < len(folders) <= MAX_COMPARED and len(set(folders)) == 1


def list_view(name: str, *lists: JobList, now: float) -> View:
    """The page of a folder's jobs, the newest first; `now` is in seconds since the epoch."""
    jobs = sorted((job for jobs in lists for job in jobs.jobs), key=_newest_first)
    rows = [_row(path, snapshot, now) for path, snapshot in jobs]
    settings = {path: of_job for it in lists for path, of_job in it.settings.items()}
    curves = [
        (path, few(snapshot.loss))
        for path, snapshot in jobs
        if snapshot is not None and path in settings
    ]
    chart = chart_of("loss over steps", curves)
    problems = [text for it in lists for text in (it.problem, it.late) if text]
    sections = {
        "head": section("head", f"Jobs below {name}"),
        "problem": section("problem", " ".join(problems)),
        "jobs": section("jobs", _HEADER, rows),
        "settings": section("table", settings_table(settings)),
        "charts": section("charts", [] if chart is None else [chart]),
    }
    return View(f"jobs - {name}", sections)


def _newest_first(job: tuple[str, JobSnapshot | None]) -> tuple[float, str]:
    path, snapshot = job
    return -(snapshot.began or 0.0) if snapshot is not None else 0.0, path


def _row(path: str, snapshot: JobSnapshot | None, now: float) -> dict[str, Any]:
    row = {"name": path, "target": f"/job/{quoted(path)}/"}
    if snapshot is None:
        return {**row, "state": "not read yet", "cells": ()}
    state = snapshot.state
    if state is None:
        return {**row, "state": "unknown", "cells": (snapshot.problem,)}
    began, details = snapshot.began, snapshot.details
    ranks = f"{0 if snapshot.is_over else state.size}"
    done = f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}"
    cells = (
        ranks if details is None else details.summary,
        # A list of the jobs in a cluster does not tell how far they are.
        done if details is None or state.done else "",
        "" if state.loss is None else f"{state.loss:.4g}",
        metrics_text(state.metrics) if state.metrics else "",
        goodput_text(state.account),
        "" if began is None else clock(began),
        "" if began is None else ago(began, snapshot.ended or now),
    )
    return {**row, "state": (details or state).state, "cells": cells}
