"""Files of segments, put in order after rings of many sizes; no ring and no model needed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.errors import DataError
from edl_horovod.job.directory import JobDir
from edl_horovod.records.plan import DataPlan, lanes_of_rank
from edl_horovod.tasks import predict as module
from edl_horovod.tasks.predict import Segments


def make(folder: Path, *, records: int, lanes: int, batch: int) -> tuple[Segments, DataPlan]:
    plan = DataPlan(
        block_starts=np.array([0]),
        block_counts=np.array([records]),
        global_batch=batch,
        num_lanes=lanes,
        is_shuffled=False,
    )
    segments = Segments(JobDir(folder), plan)
    segments.begin()
    return segments, plan


def write_as_rank(segments: Segments, plan: DataPlan, segment: int, rank: int, size: int) -> None:
    order = plan.order(0)
    by_lane = [
        [
            b"%d" % record
            for step in segments.steps(segment)
            for record in order.records(step, range(lane, lane + 1))
        ]
        for lane in lanes_of_rank(rank, size, plan.num_lanes)
    ]
    segments.write(segment, by_lane, rank=rank, size=size)


@settings(max_examples=25)
@given(st.data())
def test_every_output_is_there_once_and_in_order_after_any_rings(tmp_path_factory, data):
    lanes = data.draw(st.integers(1, 9))
    records, lane_batch = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 3))
    segments, plan = make(
        tmp_path_factory.mktemp("s"), records=records, lanes=lanes, batch=lanes * lane_batch
    )
    sizes = [data.draw(st.integers(1, lanes)) for _ in range(segments.num_segments)]
    for segment, size in enumerate(sizes):
        for rank in range(size):
            write_as_rank(segments, plan, segment, rank, size)
    assert [int(record) for record in segments.in_order(sizes)] == list(range(records))


def test_what_a_broken_ring_wrote_is_left_out(tmp_path):
    segments, plan = make(tmp_path, records=100, lanes=4, batch=4)
    for segment in range(segments.num_segments):
        write_as_rank(segments, plan, segment, 1, 3)  # Of a ring of 3 that was lost.
        for rank in range(2):
            write_as_rank(segments, plan, segment, rank, 2)
    assert [int(r) for r in segments.in_order([2] * segments.num_segments)] == list(range(100))


def test_more_lanes_than_files_may_be_open_are_dealt_in_passes(tmp_path):
    lanes = 2 * module.LANES_AT_ONCE + 1
    segments, plan = make(tmp_path, records=4 * lanes, lanes=lanes, batch=lanes)
    for segment in range(segments.num_segments):
        write_as_rank(segments, plan, segment, 0, 1)
    assert [int(r) for r in segments.in_order([1] * segments.num_segments)] == [*range(4 * lanes)]


def test_each_file_is_opened_once(tmp_path, monkeypatch):
    segments, plan = make(tmp_path, records=2000, lanes=8, batch=8)
    for segment in range(segments.num_segments):
        write_as_rank(segments, plan, segment, 0, 1)
    opened: list[str] = []
    open_reader = module.Reader.open
    monkeypatch.setattr(
        module.Reader,
        "open",
        lambda paths, **options: opened.extend(paths) or open_reader(paths, **options),
    )
    assert sum(1 for _ in segments.in_order([1] * segments.num_segments)) == 2000
    assert len(opened) == len(set(opened)) == segments.num_segments


def test_a_file_that_is_missing_is_named(tmp_path):
    segments, plan = make(tmp_path, records=20, lanes=2, batch=2)
    write_as_rank(segments, plan, 0, 0, 1)
    with pytest.raises(DataError, match=r"00000001-0000-of-0001\.recordio"):
        list(segments.in_order([1, 1]))


def test_discarded_segments_are_gone_with_what_a_lost_leader_left(tmp_path):
    segments, plan = make(tmp_path, records=20, lanes=2, batch=2)
    write_as_rank(segments, plan, 0, 0, 1)
    (tmp_path / "segments.done" / "lanes-1").mkdir(parents=True)
    assert segments.exist
    segments.discard()
    assert not segments.exist
    assert list(tmp_path.iterdir()) == []
