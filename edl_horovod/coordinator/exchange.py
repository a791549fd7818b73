"""The exchange of addresses between the members of one group."""

import asyncio

__all__ = ["Exchange"]


class Exchange:
    """Collects what each member has for each other member."""

    def __init__(self, size: int, num_bytes: int) -> None:
        """Begin with nothing.

        Args:
            size: Members of the group.
            num_bytes: What a member has for all others: parts of one length, in the order of the
                others' ranks.
        """
        self.size = size
        self.num_bytes = num_bytes
        self.is_over = asyncio.Event()
        """All members have given their parts, or no member is waiting any longer."""
        self._given: dict[int, bytes] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all members have given their parts."""
        return len(self._given) == self.size

    def give(self, rank: int, parts: bytes) -> None:
        """Take what a member has for the others.

        Args:
            rank: The member; it may give its parts twice.
            parts: As many bytes as of every member.
        """
        self._given[rank] = parts
        if self.is_complete:
            self.is_over.set()

    def take(self, rank: int) -> bytes:
        """What the others have for a member, in rank order, once the exchange is complete."""
        width = self.num_bytes // (self.size - 1)
        parts = []
        for other in range(self.size):
            if other != rank:
                # A member has no part for itself.
                start = width * (rank if rank < other else rank - 1)
                parts.append(self._given[other][start : start + width])
        return b"".join(parts)
