"""The ring as one rank sees it: rebuilt at each reset, never read from the environment (rule 9)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from edl_horovod.coordinator.messages import Place
from edl_horovod.records.lanes import lanes_of_rank

__all__ = ["World"]


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's place."""

    rank: int
    size: int
    generation: int

    @classmethod
    def of(cls, place: Place) -> Self:
        """The ring that a place is in, once it is formed."""
        return cls(rank=place.rank, size=place.size, generation=place.generation)

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes what the ring writes once."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        return self.size == 1

    def among(self, ranks: Sequence[int]) -> Self | None:
        """This rank's place among some ranks, in their order; None where it is none of them."""
        if self.rank not in ranks:
            return None
        return replace(self, rank=ranks.index(self.rank), size=len(ranks))

    def lanes(self, num_lanes: int) -> range:
        """The lanes that this rank owns."""
        return lanes_of_rank(self.rank, self.size, num_lanes)
