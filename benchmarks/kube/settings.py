"""How many of everything."""

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a run."""

    num_pods: int
    num_workers: int
    """Connected to one coordinator."""
    num_events: int
    """Changes of each kind."""
    quiet_seconds: float
    """How long the requests of an undisturbed discovery are counted."""


FULL = Scale(num_pods=5000, num_workers=1000, num_events=10, quiet_seconds=60.0)
QUICK = Scale(num_pods=500, num_workers=100, num_events=3, quiet_seconds=5.0)
