"""Pages about jobs as HTML, from sections that each live page replaces alone; text is escaped."""

import base64
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import quote

from edl_horovod.config import resolved
from edl_horovod.config.fields import REQUIRED, settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.page.snapshot import JobSnapshot, Point
from edl_horovod.displays.text import JobTable
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.files import json_text
from edl_horovod.files.url_secrets import without_secrets

try:
    import jinja2
except ImportError as e:
    raise MissingDependency(
        f"Pages of jobs need a package that is not installed: {e}. To install it where this command"
        f" runs, {how_to_install('dashboard')}"
    ) from e

LIBRARY = "uplot/uPlot.iife.min.js"
"""It draws curves; its folder has the files as its authors publish them."""
SCRIPT = "page.js"
STYLES = ("uplot/uPlot.min.css", "style.css")
ASSETS = (LIBRARY, SCRIPT, *STYLES)
"""The files that pages are made with."""
_NUM_STRIDES = 200
_MOST = 1e30
"""Larger numbers are left out of curves: a browser's own numbers end at 1e308."""
_MOST_STEPS = 2**53
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What sets colours on a terminal and moves its cursor."""
_NOT_SHOWN = "(not shown: it may hold a secret)"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class View:
    """What stands on a page."""

    title: str
    sections: Mapping[str, str]
    """HTML by the id of the section, in the order of the page; a live page replaces them."""
    http_status: int = 200


@dataclass(frozen=True)
class Chart:
    """One curve, or several of different jobs."""

    title: str
    label: str
    """The curves in words, for who cannot see them."""
    names: tuple[str, ...]
    """Names of the curves, where there are several."""
    data: str
    """What page.js draws, as JSON."""


def section(name: str, *values: Any) -> str:
    """Render a section by a macro of sections.html."""
    return str(getattr(_environment().get_template("sections.html").module, name)(*values))


def page(view: View, *, stream: str = "", links: Sequence[tuple[str, str]] = ()) -> bytes:
    """A page that a server serves, in UTF-8.

    Args:
        view: What stands on it.
        stream: URL of the changes that it follows; empty for a page that does not change.
        links: Texts and URLs of other pages.
    """
    template = _environment().get_template("page.html")
    assets = {"styles": STYLES, "library": LIBRARY, "script": SCRIPT}
    values = {"inlined": None, "stream": stream, "links": links, **assets}
    return _encoded(template.render(view=view, **values))


def offline_page(view: View) -> bytes:
    """A page in a single file, in UTF-8, which needs no other file and no network."""
    library, script = shipped(LIBRARY), shipped(SCRIPT)
    digests = [hashlib.sha256(text.encode()).digest() for text in (library, script)]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    inlined = {
        "styles": [shipped(name) for name in STYLES],
        "library": library,
        "script": script,
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}",
    }
    template = _environment().get_template("page.html")
    values = {"inlined": inlined, "stream": "", "links": ()}
    return _encoded(template.render(view=view, **values))


def shipped(name: str) -> str:
    """The text of a file beside this module."""
    return (resources.files("edl_horovod.displays.page") / name).read_text(encoding="utf-8")


def charts_of(snapshot: JobSnapshot) -> list[Chart]:
    """The curves of a job, as far as there are any."""
    began = snapshot.ring[0][0] if snapshot.ring else 0.0
    # The size has not changed since the last point, so the line extends to the end, or until now:
    # in strides, so that a page that is live is not sent a curve each second.
    until = snapshot.ended
    if until is None:
        stride = max(1.0, (snapshot.time - began) / _NUM_STRIDES)
        until = began + (snapshot.time - began) // stride * stride
    last = [(max(until, time), size) for time, size in snapshot.ring[-1:]]
    ring = [(when - began, size) for when, size in _in_order([*snapshot.ring, *last])]
    metrics = [
        chart_of(f"{name} of evaluations over steps", [("", points)])
        for name, points in snapshot.metrics.items()
    ]
    charts = [
        chart_of("loss over steps", [("", snapshot.loss)]),
        *metrics,
        chart_of("records/s over steps", [("", snapshot.speed)], is_from_zero=True),
        chart_of("ranks in the ring over time", [("", ring)], is_over_time=True, is_from_zero=True),
    ]
    return [chart for chart in charts if chart is not None]


def log_view(name: str, process: str, text: str, problem: str = "") -> View:
    """The end of the log of a process, whatever bytes it wrote."""
    lines = "\n".join(_CONTROL.sub("", text).splitlines())
    sections = {
        "head": section("head", f"{name}: log of {process}"),
        "problem": section("problem", problem),
        "log": section("log", process, _UNPRINTABLE.sub("\ufffd", lines)),
    }
    return View(f"{process} - {name}", sections)


def settings_view(name: str, config: JobConfig) -> View:
    """The resolved settings of a job and where they came from, first those that were set."""
    rows = sorted(_setting_rows(config), key=lambda row: row[2] == "default")
    table = JobTable("Resolved settings", ("SETTING", "VALUE", "FROM", "MEANING"), rows)
    sections = {"head": section("head", f"{name}: settings"), "settings": section("table", table)}
    return View(f"settings - {name}", sections)


def quoted(path: str) -> str:
    """A path in a URL."""
    return quote(path, errors="backslashreplace")


def _setting_rows(config: JobConfig) -> Iterator[tuple[str, str, str, str]]:
    values, public_values = resolved.to_dict(config), resolved.to_dict(config.public())
    for setting in settings(JobConfig):
        if setting.key == "origins":
            continue
        value, public_value = (_value_of(setting.key, it) for it in (values, public_values))
        default = None if setting.default is REQUIRED else setting.default
        # What no file and no command has set, the command derived from the rest. Jobs of earlier
        # versions have no origins.
        derived = f"edl {config.task}" if config.origins else "unknown"
        origin = config.origins.get(setting.key) or ("default" if value == default else derived)
        text = without_secrets(json_text.dumps(value, ensure_ascii=False))
        shown = text if value == public_value else _NOT_SHOWN
        yield setting.key, shown, origin, setting.meaning


def _value_of(key: str, values: Mapping[str, Any]) -> Any:
    return functools.reduce(lambda inner, name: inner[name], key.split("."), values)


def chart_of(
    title: str,
    curves: Sequence[tuple[str, Sequence[Point]]],
    *,
    is_over_time: bool = False,
    is_from_zero: bool = False,
) -> Chart | None:
    """Curves in one chart; None if no points make a curve yet.

    Args:
        title: Title of the chart.
        curves: Names and points; a curve needs at least two with different x.
        is_over_time: Whether x is seconds and each value holds until the next point.
        is_from_zero: Whether the y axis begins at 0.
    """
    drawable = [(name, list(_drawable(points))) for name, points in curves]
    drawable = [(name, points) for name, points in drawable if _is_curve(points)]
    if not drawable:
        return None
    data = {
        "curves": [
            {"x": [x for x, _ in points], "y": [y for _, y in points]} for _, points in drawable
        ],
        "isOverTime": is_over_time,
        "isFromZero": is_from_zero,
    }
    words = "; ".join(f"{name} {_in_words(points)}".strip() for name, points in drawable)
    names = tuple(name for name, _ in drawable if name)
    return Chart(title, f"{title}: {words}", names, json_text.dumps(data))


def _drawable(points: Sequence[Point]) -> Iterator[Point]:
    return ((x, y) for x, y in points if abs(x) < _MOST_STEPS and abs(y) < _MOST)


def _is_curve(points: Sequence[Point]) -> bool:
    return bool(points) and points[0][0] != points[-1][0]


def _in_words(points: Sequence[Point]) -> str:
    ys = [y for _, y in points]
    return f"first {ys[0]:.4g}, last {ys[-1]:.4g}, least {min(ys):.4g}, most {max(ys):.4g}"


def _in_order(points: Sequence[Point]) -> Iterator[Point]:
    """The points, where a clock that was set back does not go back."""
    latest = points[0][0] if points else 0.0
    for x, y in points:
        latest = max(latest, x)
        yield latest, y


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(shipped),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _encoded(text: str) -> bytes:
    # JSON can contain lone surrogates, which UTF-8 cannot encode.
    return text.encode(errors="backslashreplace")
