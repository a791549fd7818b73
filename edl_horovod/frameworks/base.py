"""What the ring needs of a framework (D16)."""

from collections.abc import Iterable

__all__ = ["CollectiveFailed"]


class CollectiveFailed(Exception):
    """A collective did not complete: a member died, hung or left. The ring must form again."""

    def __init__(self, message: str, *, unreached: Iterable[str] = ()) -> None:
        """Describe the failure.

        Args:
            message: For people.
            unreached: IP addresses of members that this rank could not connect to.
        """
        super().__init__(message)
        self.unreached = frozenset(unreached)
