"""What Kubernetes says of a job's objects: its events, reduced."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edl_horovod.cluster import labels

__all__ = ["EventView", "event_view", "events_of", "seconds_of"]

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One thing that Kubernetes said of an object."""

    time: str
    """When it was last said, in RFC 3339."""
    kind: str
    """`Normal` or `Warning`."""
    object: str
    """Kind and name of what it is about: `Pod/job-worker-0`."""
    text: str


def events_of(job: Object, events: Iterable[Object]) -> list[EventView]:
    """Those of a namespace about a job, not an earlier job of its name; the oldest first."""
    name, created = job["metadata"]["name"], seconds_of(job["metadata"].get("creationTimestamp"))
    ours = [
        event_view(event) for event in events if labels.is_of_job(name, event["involvedObject"])
    ]
    return sorted(
        (event for event in ours if seconds_of(event.time) >= created),
        key=lambda event: seconds_of(event.time),
    )


def event_view(event: Object) -> EventView:
    """One event of the API server, reduced."""
    about, created = event["involvedObject"], event["metadata"].get("creationTimestamp")
    return EventView(
        # Older and newer senders differ in where the time is.
        time=str(event.get("lastTimestamp") or event.get("eventTime") or created or ""),
        kind=event.get("type") or "",
        object=f"{about.get('kind')}/{about.get('name')}",
        text=": ".join(filter(None, (event.get("reason"), event.get("message")))),
    )


def seconds_of(stamp: str | None) -> float:
    """Seconds since the epoch of a time as the API server writes it; 0 for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
