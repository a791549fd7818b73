"""A stream gives the records that the plan says, in its order, from any step and for any lanes."""

import sys
from pathlib import Path

import pytest

from edl_horovod import ElasticDLSpec, Mode
from edl_horovod.errors import DataError
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan, lanes_of_rank
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Writer
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.batches import KerasBatches

# In the last step of an epoch one of the 6 lanes has a record and 5 have none.
NUM_RECORDS, BATCH, LANES = 73, 24, 6


if LATER:

    class Plain(ElasticDLSpec):
        """Examples are the records themselves."""

        def create_model(self) -> keras.Model:
            raise NotImplementedError

        def create_loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            raise NotImplementedError

        def create_optimizer(self) -> keras.optimizers.Optimizer:
            raise NotImplementedError

        def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
            return dataset.map(lambda records: (records, tf.strings.length(records)))

    class PlainBatches(Plain):
        """The same, a step's records at once."""

        parses_batches = True


def record(number: int) -> bytes:
    """Of its own length and with zeros at its end, which strings of fixed length would lose."""
    return b"%d" % number + bytes(number % 3)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.recordio"
    with Writer(path, chunk_bytes=64) as writer:
        for number in range(NUM_RECORDS):
            writer.write(record(number))
    return str(path)


@pytest.fixture(params=[later("Plain"), later("PlainBatches")])
def opened(path, request):
    index = Index.open(path)
    plan = DataPlan(
        block_starts=index.block_starts,
        block_counts=index.block_counts,
        global_batch=BATCH,
        num_lanes=LANES,
        window=5,
    )
    loaded = LoadedSpec(
        spec=request.param(),
        zoo=Path(__file__).parent,
        kind=request.param,
        module=sys.modules[__name__],
        symbol="Plain",
        parts={},
    )
    with Reader(index) as reader:
        yield KerasBatches(reader, plan, loaded, Mode.TRAINING, prefetch=2), plan


def expected(plan: DataPlan, step: int, lanes: range) -> list[int]:
    epoch, within = divmod(step, plan.steps_per_epoch)
    return plan.order(epoch).records(within, lanes).tolist()


@pytest.fixture
def damaged(path, opened):
    """The records of the last chunk, whose last byte is changed after the file was opened."""
    _, plan = opened
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)
    return set(range(plan.block_starts[-1], NUM_RECORDS))


@pytest.mark.long(after=1)
@pytest.mark.parametrize("size", [1, 2, 4, LANES])
def test_each_step_holds_its_records_in_the_order_of_the_plan(opened, size):
    stream, plan = opened
    for rank in range(size):
        lanes = lanes_of_rank(rank, size, LANES)
        first, last = rank, 3 * plan.steps_per_epoch - rank
        stream.restart(lanes, first, last)
        for step in range(first, last):
            batch = stream.next_batch()
            ids = expected(plan, step, lanes)
            assert stream.record_ids.tolist() == ids
            if not ids:
                assert batch is None
                continue
            assert batch.features.numpy().tolist() == [record(n) for n in ids]
            assert batch.labels.numpy().tolist() == [len(record(n)) for n in ids]
            assert batch.num_examples == len(ids)
        assert stream.next_batch() is None


def next_records(stream):
    batch = stream.next_batch()
    return [] if batch is None else batch.features.numpy().tolist()


def test_a_restart_drops_what_was_made_ready_for_other_lanes(opened):
    stream, plan = opened
    for number in range(20):
        lanes, step = lanes_of_rank(number % 3, 3, LANES), number % 7
        stream.restart(lanes, step, 1_000_000_000)
        for taken in range(number % 4):
            ids = expected(plan, step + taken, lanes)
            assert next_records(stream) == [record(n) for n in ids]
            assert stream.record_ids.tolist() == ids


@pytest.mark.long
def test_an_expected_restart_is_that_restart_and_another_one_is_not(opened):
    stream, plan = opened
    end = 2 * plan.steps_per_epoch
    for number in range(60):
        lanes, step = lanes_of_rank(number % 2, 2, LANES), number % end
        if number % 3:
            stream.expect(lanes, step, end)
        if number % 3 == 2:
            step = (step + 1) % end
        stream.restart(lanes, step, end)
        for taken in range(number % 7):  # Now and then beyond the end.
            ids = expected(plan, step + taken, lanes) if step + taken < end else []
            assert next_records(stream) == [record(n) for n in ids]


def test_one_iterator_goes_from_run_to_run(opened, monkeypatch):
    stream, _ = opened
    iterators: list[int] = []
    start = stream._start_iterator
    monkeypatch.setattr(stream, "_start_iterator", lambda: (iterators.append(1), start()))
    for number in range(20):
        stream.restart(lanes_of_rank(number % 3, 3, LANES), number, 1_000_000_000)
        stream.next_batch()
    assert len(iterators) == 1
    for _ in range(2):
        stream.restart(range(LANES), 0, 1)
        assert stream.next_batch().num_examples == BATCH
        assert stream.next_batch() is None
        assert stream._pull(1) is None  # So it comes to its end.
    assert len(iterators) == 2


@pytest.mark.long
def test_what_a_former_run_could_not_read_is_not_told_of_the_next(opened, damaged):
    stream, plan = opened

    def is_good(step: int, lanes: range) -> bool:
        return damaged.isdisjoint(expected(plan, step, lanes))

    steps = range(plan.steps_per_epoch)
    lanes = [range(lane, lane + 1) for lane in range(LANES)]
    good = next(lane for lane in lanes if all(is_good(step, lane) for step in steps))
    bad, first = next(
        (lane, step)
        for lane in lanes
        for step in range(20 * plan.steps_per_epoch)
        if is_good(step, lane)
        and expected(plan, step, lane)
        and damaged & {*expected(plan, step + 1, lane)}
    )
    for _ in range(10):
        stream.restart(bad, first, 21 * plan.steps_per_epoch)
        assert stream.next_batch() is not None  # The damaged part is read ahead.
        stream.restart(good, 0, plan.steps_per_epoch)
        for step in steps:
            stream.next_batch()
            assert stream.record_ids.tolist() == expected(plan, step, good)


def test_what_cannot_be_read_is_not_told_at_a_step_that_has_no_records(opened, damaged):
    stream, plan = opened
    lanes, step = next(
        (lanes, step)
        for lanes in (range(lane, lane + 1) for lane in range(LANES))
        for step in range(50 * plan.steps_per_epoch)
        if not expected(plan, step, lanes) and damaged & {*expected(plan, step + 1, lanes)}
    )
    stream.restart(lanes, step, step + 2)
    assert stream.next_batch() is None
    assert stream.record_ids.tolist() == []
    with pytest.raises(DataError, match=r"chunk \d+ .*damaged"):
        stream.next_batch()


@pytest.mark.usefixtures("damaged")
def test_a_record_that_cannot_be_read_is_named(opened):
    stream, plan = opened
    stream.restart(range(LANES), 0, plan.steps_per_epoch)
    with pytest.raises(DataError, match=r"a\.recordio: chunk \d+ "):
        _ = [stream.next_batch() for _ in range(plan.steps_per_epoch)]
