"""Limits connections that have not yet proven that they belong to the job."""

import asyncio
import resource
from collections import Counter

__all__ = ["Strangers", "at_most"]


def at_most(limit: int) -> int:
    """Lower a limit of connections to an eighth of the files that this process may open.

    `asyncio` accepts a whole backlog before it tells anybody of a connection, and closes what was
    aborted a few rounds later: the rest is room for those, and for members.
    """
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if open_files == resource.RLIM_INFINITY else min(limit, open_files // 8)


class Strangers:
    """The unproven connections of one server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._addresses: dict[asyncio.StreamWriter, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, writer: asyncio.StreamWriter) -> None:
        """Count a new connection. If it is one too many, abort one.

        It is the oldest one of the address that has most of them: a member proves itself within a
        round trip, and an address that opens thousands displaces only its own.
        """
        peer = writer.get_extra_info("peername")
        self._addresses[writer] = str(peer[0]) if peer else ""
        if len(self) > self._limit:
            ((busiest, _),) = Counter(self._addresses.values()).most_common(1)
            oldest = next(w for w, address in self._addresses.items() if address == busiest)
            self.leave(oldest)
            oldest.transport.abort()

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """Stop counting a connection that has proven itself or is gone."""
        self._addresses.pop(writer, None)
