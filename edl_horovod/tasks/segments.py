"""The files of a prediction while it runs: outputs segment by segment, put in order at the end.

A segment is some steps. Each rank writes a segment's outputs of its lanes, lane after lane, to a
file of its own; a segment that a lost rank broke is done again, under other names if the ring has
another size. At the end each file is read once, and its lanes are dealt to one file a lane.
"""

import collections
import contextlib
import itertools
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from edl_horovod.job.directory import JobDir
from edl_horovod.records.lanes import lanes_of_rank
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Codec, Writer

__all__ = ["Segments"]

SEGMENT_STEPS = 8
"""Steps between two collectives; a lost rank costs at most two segments."""
LANES_AT_ONCE = 256
"""Lanes dealt in one pass over the files: so many are open."""
_LENGTH = struct.Struct("<I")


class Segments:
    """Outputs of all steps, in a folder that is there from the first segment to the result."""

    def __init__(self, job_dir: JobDir, plan: DataPlan) -> None:
        """Touch no file yet.

        Args:
            job_dir: The job's directory, which all ranks see.
            plan: Of the input, not shuffled: its lanes are runs of the input's own order.
        """
        self._folder, self._discarded = job_dir.segments, job_dir.discarded_segments
        self._plan = plan
        self.num_segments = -(-plan.steps_per_epoch // SEGMENT_STEPS)

    def steps(self, segment: int) -> range:
        """The steps of a segment; none after the last segment."""
        last = self._plan.steps_per_epoch
        first = min(segment * SEGMENT_STEPS, last)
        return range(first, min(first + SEGMENT_STEPS, last))

    def num_records(self, lane: int, steps: range) -> int:
        """Records that a lane gives to some steps."""
        start, stop = self._plan.lane_bounds(lane)
        lane_batch, length = self._plan.lane_batch, stop - start
        return min(steps.stop * lane_batch, length) - min(steps.start * lane_batch, length)

    def begin(self) -> None:
        """Make the folder, if it is not there yet."""
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def are_there(self) -> bool:
        """Whether the folder is there: from `begin` to `discard`, of whatever rank."""
        return self._folder.is_dir()

    def discard(self) -> None:
        """Remove all files. The folder's name goes at once."""
        shutil.rmtree(self._discarded, ignore_errors=True)
        self._folder.rename(self._discarded)
        shutil.rmtree(self._discarded, ignore_errors=True)

    def write(
        self, segment: int, by_lane: Sequence[Sequence[bytes]], *, rank: int, size: int
    ) -> None:
        """Write a rank's outputs of a segment; a file of the same name held the same.

        Args:
            segment: Counted from 0.
            by_lane: Outputs of each of the rank's lanes.
            rank: Of this rank.
            size: Of the ring.

        Raises:
            OutputError: The disk is full or gone.
        """
        with Writer(self._path(segment, rank, size), codec=Codec.NONE) as writer:
            for record in itertools.chain.from_iterable(by_lane):
                writer.write(record)

    def in_order(self, sizes: Sequence[int]) -> Iterator[bytes]:
        """All outputs in the order of the input.

        Args:
            sizes: Of the ring that did each segment.

        Raises:
            DataError: A file is missing or damaged.
            OSError: The disk is full or gone.
        """
        num_lanes = self._plan.num_lanes
        # Of this process alone: a former leader that hung may still be at work on its own.
        folder = self._folder / f"lanes-{os.getpid()}"
        for first in range(0, num_lanes, LANES_AT_ONCE):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            lanes = range(first, min(first + LANES_AT_ONCE, num_lanes))
            paths = {lane: folder / f"{lane:06d}" for lane in lanes}
            self._deal(paths, sizes)
            for path in paths.values():
                yield from _read_framed(path)

    def _deal(self, paths: Mapping[int, Path], sizes: Sequence[int]) -> None:
        with contextlib.ExitStack() as stack:
            streams: Mapping[int, BinaryIO] = {
                lane: stack.enter_context(path.open("wb")) for lane, path in paths.items()
            }
            for segment, size in enumerate(sizes):
                for rank in range(size):
                    self._deal_file(streams, segment, rank, size)

    def _deal_file(
        self, streams: Mapping[int, BinaryIO], segment: int, rank: int, size: int
    ) -> None:
        lanes = lanes_of_rank(rank, size, self._plan.num_lanes)
        counts = {lane: self.num_records(lane, self.steps(segment)) for lane in lanes}
        if not any(count for lane, count in counts.items() if lane in streams):
            return
        with Reader.open([str(self._path(segment, rank, size))], cache_bytes=1) as reader:
            records = iter(reader)
            for lane, count in counts.items():
                of_lane = itertools.islice(records, count)
                if lane in streams:
                    streams[lane].writelines(_LENGTH.pack(len(r)) + r for r in of_lane)
                else:
                    collections.deque(of_lane, maxlen=0)

    def _path(self, segment: int, rank: int, size: int) -> Path:
        return self._folder / f"{segment:08d}-{rank:04d}-of-{size:04d}.recordio"


def _read_framed(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while length := stream.read(_LENGTH.size):
            yield stream.read(_LENGTH.unpack(length)[0])
