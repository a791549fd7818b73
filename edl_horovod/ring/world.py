"""The ring as one rank sees it: rebuilt at each reset, never read from the environment (rule 9)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl_horovod.records.lanes import lanes_of_rank

__all__ = ["World", "world_of"]


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's place."""

    rank: int
    size: int
    generation: int

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes what the ring writes once."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        return self.size == 1

    def lanes(self, num_lanes: int) -> range:
        """The lanes that this rank owns."""
        return lanes_of_rank(self.rank, self.size, num_lanes)


def world_of(place: Mapping[str, Any]) -> World:
    """The ring that a place is in, once it is formed."""
    return World(rank=place["rank"], size=place["size"], generation=place["generation"])
