"""Render the page as HTML. All text is escaped, because it may contain anything."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2

from edl_horovod.displays.page import chart
from edl_horovod.displays.page.look import Look
from edl_horovod.displays.page.series import stairs
from edl_horovod.displays.text import (
    POD_HEADER,
    WORKER_HEADER,
    ago,
    job_facts,
    other_waits,
    pod_rows,
    worker_rows,
)

__all__ = ["REFRESH_SECONDS", "PageTemplate", "style"]

REFRESH_SECONDS = 5


@dataclass(frozen=True)
class _Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class PageTemplate:
    """Renders pages from a template that is read once."""

    def __init__(self) -> None:
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._template = environment.from_string(_shipped("page.html"))

    def render(self, name: str, look: Look, *, now: float) -> bytes:
        """Render the page in UTF-8; `now` is in seconds since the epoch."""
        facts = {} if look.state is None else job_facts(look.state, look.job, now=now)
        text = self._template.render(
            name=name,
            look=look,
            state="unknown" if look.state is None else (look.job or look.state).state,
            facts={key: value for key, value in facts.items() if value},
            charts=_charts(look),
            field=(chart.WIDTH, chart.HEIGHT),
            table=_table(look, now),
            waits=() if look.job is None else other_waits(look.job),
            notable=[(_clock(when), words) for when, words in reversed(look.notable)],
            as_of=_clock(look.time),
            refresh_seconds=REFRESH_SECONDS,
        )
        # JSON can contain lone surrogates, which UTF-8 cannot encode.
        return text.encode(errors="backslashreplace")


def style() -> str:
    """The style sheet."""
    return _shipped("style.css")


def _shipped(name: str) -> str:
    return (resources.files("edl_horovod.displays.page") / name).read_text(encoding="utf-8")


def _charts(look: Look) -> list[chart.Chart]:
    began = look.ring[0][0] if look.ring else 0.0
    # The size has not changed since the last point, so the line extends until now, or to the end.
    until = look.time if look.ended is None else look.ended
    ring = stairs(
        [*look.ring, (max(until, look.ring[-1][0]), look.ring[-1][1])] if look.ring else ()
    )
    drawn = [
        chart.draw("loss over steps", look.loss, x_text=lambda x: f"step {x:,.0f}", y_text=_number),
        chart.draw(
            "ranks in the ring over time",
            ring,
            x_text=lambda x: ago(began, x),
            y_text=_number,
            y_least=0.0,
        ),
    ]
    return [chart for chart in drawn if chart is not None]


def _table(look: Look, now: float) -> _Table | None:
    if look.job is not None:
        return _Table("Pods", POD_HEADER, pod_rows(look.job))
    if look.state is not None and look.state.workers:
        return _Table("Workers", WORKER_HEADER, worker_rows(look.state, now))
    return None


def _number(value: float) -> str:
    return f"{value:.4g}"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
