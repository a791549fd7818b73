"""A curve of bounded size, however long it grows."""

from collections.abc import Sequence

__all__ = ["Point", "Series"]

Point = tuple[float, float]

MAX_POINTS = 400


class Series:
    """Points of a curve; once there are too many, every other one is removed.

    From then on only every second (then fourth, ...) point is kept, so the kept points are spread
    evenly over all that were added. The last point is always kept.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        """Start without points; at least 2 are kept beside the last one."""
        self._max = max_points
        self._kept: list[Point] = []
        self._last: Point | None = None
        self._stride = 1
        self._num_skipped = 0

    @property
    def points(self) -> tuple[Point, ...]:
        """The kept points in the order in which they were added."""
        if self._last is None or self._kept[-1] == self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self._last = (x, y)
        if self._kept and self._num_skipped + 1 < self._stride:
            self._num_skipped += 1
            return
        self._num_skipped = 0
        self._kept.append(self._last)
        if len(self._kept) > self._max:
            if len(self._kept) % 2 == 0:
                self._num_skipped = self._stride  # The last one is removed, too.
            self._kept = self._kept[::2]
            self._stride *= 2

    def rewind(self, x: float) -> None:
        """Remove the points from `x` on, because the job continues from an earlier step."""
        if self._last is not None and self._last[0] >= x:
            self._kept = [point for point in self._kept if point[0] < x]
            self._last = self._kept[-1] if self._kept else None
            self._num_skipped = 0


def stairs(points: Sequence[Point]) -> tuple[Point, ...]:
    """The corners of a step curve, which keeps each value until the next point."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return tuple(corners)
