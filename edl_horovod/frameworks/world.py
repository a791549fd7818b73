"""The ring as one rank sees it: rebuilt at each reset, never read from the environment (rule 9)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from edl_horovod.coordinator.messages import Place
from edl_horovod.records.plan import lanes_of_rank


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's position in the ring."""

    rank: int
    size: int
    generation: int

    @classmethod
    def of(cls, place: Place) -> Self:
        """Describe the ring that forms with this rank at `place`."""
        return cls(rank=place.rank, size=place.size, generation=place.generation)

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes the shared files and runs the user's callbacks."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether this rank is the only member of the ring."""
        return self.size == 1

    def among(self, ranks: Sequence[int]) -> Self | None:
        """Return the ring that these ranks form in their order; None if this rank is not in it."""
        if self.rank not in ranks:
            return None
        return replace(self, rank=ranks.index(self.rank), size=len(ranks))

    def lanes(self, num_lanes: int) -> range:
        """Return the lanes that this rank owns."""
        return lanes_of_rank(self.rank, self.size, num_lanes)
