"""Which records belong to which step of a run, and a restart that is made ahead of its time."""

import threading
from typing import Any

import numpy as np
import pytest

from edl_horovod.records.columns import Ragged
from edl_horovod.records.layout import Column, Layout
from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.records.steps import NO_IDS, NO_STEP, ExpectedRestart, StepRecords

LANES = range(4)


class Numbers:
    """Reads the number of a record as that record, unless it is damaged."""

    layout: Layout | None = None

    def __init__(self, damaged: set[int]) -> None:
        self.damaged = damaged
        self.num_reads = 0

    def read(self, ids) -> list[Any]:
        self.num_reads += 1
        if self.damaged & {*ids.tolist()}:
            raise OSError("damaged")
        return [b"%d" % number for number in ids]


class Columns(Numbers):
    """Reads an array of the numbers, and one of a list for each: the number, if it is odd."""

    layout = Layout((Column("x", "int64"), Column("odd", "int64", (None,))))

    def read(self, ids) -> list[Any]:
        super().read(ids)
        odd = ids % 2 == 1
        return [ids, Ragged(ids[odd], np.cumsum(odd))]


@pytest.fixture
def plan():
    return DataPlan(
        block_starts=np.array([0, 10, 20]),
        block_counts=np.array([10, 10, 5]),
        global_batch=8,
        num_lanes=4,
        window=4,
    )


def begun(source: Numbers, plan: DataPlan, first: int, last: int) -> tuple[StepRecords, int, int]:
    """The records of a run, its number, and the number of its steps."""
    records = StepRecords(source, plan)
    records.restart(LANES, first, last)
    return records, *records.take_run(1)


def expected(plan: DataPlan, step: int) -> list[int]:
    epoch, within = divmod(step, plan.steps_per_epoch)
    return plan.order(epoch).records(within, LANES).tolist()


def test_a_run_reads_its_steps_and_says_which_records_they_hold(plan):
    records, run, num_steps = begun(Numbers(set()), plan, 2, 2 * plan.steps_per_epoch)

    assert num_steps == 2 * plan.steps_per_epoch - 2
    for number, step in enumerate(range(2, 2 * plan.steps_per_epoch)):
        assert step in records
        ids = expected(plan, step)
        assert records.read(run, number) == (step, [b"%d" % record for record in ids])
        assert records.take_ids(step).tolist() == ids
        assert records.take_ids(step) is NO_IDS
    assert 2 * plan.steps_per_epoch not in records


@pytest.mark.parametrize("damaged", [set(), {17}])
def test_columns_of_several_steps_are_read_together(plan, damaged, monkeypatch):
    monkeypatch.setattr("edl_horovod.records.steps.QUICK_READ_SECONDS", 60.0)
    source, num_steps = Columns(damaged), 10 * plan.steps_per_epoch
    records, run, _ = begun(source, plan, 1, num_steps)

    for number, step in enumerate(range(1, num_steps)):
        ids = expected(plan, step)
        if damaged & {*ids}:
            with pytest.raises(OSError, match="damaged"):
                records.read(run, number)
            assert records.failure_of(step)
            break
        at, (x, odd) = records.read(run, number)
        assert (at, x.tolist()) == (step, ids)
        lists = [part.tolist() for part in np.split(odd.values, odd.ends)[:-1]]
        assert lists == [[n] if n % 2 else [] for n in ids]
        assert records.take_ids(step).tolist() == ids
    else:
        assert source.num_reads < num_steps / 2


def test_an_iterator_takes_a_run_once_and_reads_nothing_of_a_former_one(plan):
    records, former, _ = begun(Numbers(set()), plan, 0, 5)
    assert records.has_taken_run(1)
    assert records.take_run(1) == (NO_STEP, 0)
    assert records.take_run(2)[0] == former

    records.restart(LANES, 1, 5)

    assert not records.has_taken_run(1)
    assert records.read(former, 0) == (NO_STEP, None)
    assert records.take_run(1) == (records.run_number, 4)


def test_a_failure_is_kept_for_its_step_until_the_next_run(plan):
    source = Numbers({expected(plan, 1)[0]})
    records, run, _ = begun(source, plan, 0, plan.steps_per_epoch)
    records.read(run, 0)
    with pytest.raises(OSError, match="damaged") as caught:
        records.read(run, 1)

    assert records.failure_of(0) is None
    assert records.failure_of(1) is caught.value
    records.restart(LANES, 0, plan.steps_per_epoch)
    assert records.failure_of(1) is None


def test_only_the_restart_that_was_expected_and_succeeded_is_done():
    restarts: list[tuple[range, int, int]] = []

    def restart(lanes: range, first: int, last: int, _: StepSpans | None) -> None:
        restarts.append((lanes, first, last))
        if first == 13:
            raise OSError("no such step")

    ahead = ExpectedRestart(restart)
    assert not ahead.take(LANES, 0, 5)
    ahead.begin(LANES, 0, 5)
    assert ahead.take(LANES, 0, 5)
    assert not ahead.take(LANES, 0, 5)  # Each serves once.
    ahead.begin(LANES, 0, 5)
    assert not ahead.take(LANES, 1, 5)
    ahead.begin(LANES, 0, 5)
    ahead.begin(LANES, 13, 5)
    assert not ahead.take(LANES, 0, 5)
    ahead.begin(LANES, 13, 5)
    assert not ahead.take(LANES, 13, 5)
    assert len(restarts) == 5
    assert not [thread for thread in threading.enumerate() if thread.name == "restart"]
