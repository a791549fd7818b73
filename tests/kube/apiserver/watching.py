"""Watches: what a change is to somebody who asked for some of the objects only."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

from edl_horovod.cluster.objects import Kind
from tests.kube.apiserver.selectors import matches_fields, matches_labels
from tests.kube.apiserver.store import Change, Refused, Store


@dataclass(frozen=True)
class Asked:
    """Of a list or a watch."""

    kind: Kind
    namespace: str
    labels: str
    fields: str

    def wants(self, item: dict | None) -> bool:
        return (
            item is not None
            and matches_labels(self.labels, item["metadata"].get("labels") or {})
            and matches_fields(self.fields, item)
        )


def whole(kind: Kind, item: dict) -> dict:
    return {"kind": kind.name, "apiVersion": kind.api_version, **item}


def gone(version: int) -> Refused:
    return Refused(410, "Expired", f"too old resource version: {version}")


def event(asked: Asked, change: Change) -> dict | None:
    if change.resource != asked.kind.resource:
        return None
    if asked.namespace and change.namespace != asked.namespace:
        return None
    was, is_now = asked.wants(change.old), asked.wants(change.new)
    if is_now:
        return _line("MODIFIED" if was else "ADDED", asked.kind, change.new)
    if was:
        last = change.new or change.old
        meta = {**last["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", asked.kind, {**last, "metadata": meta})
    return None


def bookmark(kind: Kind, version: int) -> dict:
    return _line("BOOKMARK", kind, {"metadata": {"resourceVersion": str(version)}})


def _line(event_type: str, kind: Kind, item: dict) -> dict:
    return {"type": event_type, "object": whole(kind, item)}


class Watch:
    """One watch: lines, as they come, to a writer that the server gives."""

    def __init__(
        self, store: Store, asked: Asked, version: int, *, bookmark_seconds: float
    ) -> None:
        self._store = store
        self._asked = asked
        self._seen = version
        self._bookmark_seconds = bookmark_seconds
        self._changed = asyncio.Event()

    async def run(self, write, seconds: float) -> None:
        """Write events until the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        next_bookmark = loop.time() + self._bookmark_seconds
        self._store.on_change.append(self._changed.set)
        try:
            while (now := loop.time()) < deadline:
                self._changed.clear()
                if not await self._write_news(write):
                    return
                if now >= next_bookmark:
                    next_bookmark = now + self._bookmark_seconds
                    await write(_bytes(bookmark(self._asked.kind, self._store.version)))
                wait = min(deadline, next_bookmark) - loop.time()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(0.0, wait))
            await write(_bytes(bookmark(self._asked.kind, self._store.version)))
        finally:
            self._store.on_change.remove(self._changed.set)

    async def _write_news(self, write) -> bool:
        if self._seen < self._store.oldest:
            await write(_bytes({"type": "ERROR", "object": gone(self._seen).status}))
            return False
        # The history is sorted by version, and only compaction shortens it, from its begin.
        news = []
        for change in reversed(self._store.history):
            if change.version <= self._seen:
                break
            news.append(change)
        self._seen = self._store.version
        lines = [line for change in reversed(news) if (line := event(self._asked, change))]
        if lines:
            await write(b"".join(map(_bytes, lines)))
        return True


def _bytes(line: dict) -> bytes:
    return json.dumps(line).encode() + b"\n"
