"""Examples of records: what `create_dataset` is given, and what it may return."""

import threading
import time

import numpy as np
import pytest

from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.records.columns import Ragged
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Tensor
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import torch
    from torch.utils.data import Dataset, IterableDataset

    from edl_horovod.frameworks.torch.batches import AllExamples, TorchBatches
    from tests.component.frameworks.torch.rings import tiny

NUM, BATCH, LANES = 20, 6, 3


class Numbers(RecordSource):
    """Record n is the text n, or columns made of n."""

    def __init__(self, layout=None):
        self.layout = layout
        self.block_starts, self.block_counts = np.array([0]), np.array([NUM])
        self.fingerprint = "numbers"

    def read(self, ids):
        ids = np.asarray(ids)
        if self.layout is None:
            return [b"%d" % number for number in ids]
        texts = np.empty(len(ids), object)
        texts[:] = [b"%d" % number for number in ids]
        lengths = ids % 3
        ragged = Ragged(np.repeat(ids, lengths), np.cumsum(lengths))
        return [ids.astype(np.float32)[:, np.newaxis], texts, ragged]

    def record_bytes(self):
        return 1.0

    def describe(self):
        return "numbers"

    def close(self):
        pass


COLUMNS = Layout(
    (Column("x", "float32", (1,)), Column("text", BYTES), Column("many", "int64", (None,)))
)


def plan_of(num_lanes=LANES):
    """All numbers in their order."""
    return DataPlan(
        block_starts=np.array([0]),
        block_counts=np.array([NUM]),
        global_batch=BATCH,
        num_lanes=num_lanes,
        is_shuffled=False,
    )


def make(create_dataset, mode=Mode.TRAINING, layout=None):
    loaded = tiny(create_dataset=create_dataset)
    return TorchBatches(Numbers(layout), plan_of(), loaded, mode, prefetch=2)


def tensors(records, mode):
    x = torch.tensor([[float(record)] for record in records])
    return (x, 2 * x) if mode is not Mode.PREDICTION else x


def all_of(batches, lanes=range(LANES), first=0, last=8):
    batches.restart(lanes, first, last)
    steps = []
    for _ in range(first, last):
        batch = batches.next_batch()
        ids = batches.record_ids.tolist()
        assert batch is None or batch.num_examples == len(batch.features)
        steps.append((ids, batch and batch.features.flatten().tolist()))
    return steps


def test_each_step_has_the_examples_of_its_records():
    batches = make(tensors)
    steps = all_of(batches)
    assert [ids for ids, _ in steps] == [features for _, features in steps]
    assert sorted(number for ids, _ in steps[:4] for number in ids) == list(range(NUM))
    assert steps[4:] == steps[:4]
    # Other lanes, from another step on, while some are made ready.
    batches.next_batch()
    part = all_of(batches, range(1, 2), 2, 6)
    assert all(
        set(ids) <= set(whole) for (ids, _), (whole, _) in zip(part, steps[2:], strict=False)
    )


def test_a_restart_that_was_expected_is_made_once():
    read = []
    batches = make(lambda records, mode: read.append(records) or tensors(records, mode))
    batches.expect(range(LANES), 1, 3)
    first = all_of(batches, first=1, last=3)
    assert len(read) == 2
    assert first == all_of(batches, first=1, last=3)


def test_only_examples_that_take_long_are_made_beside_the_step(monkeypatch):
    monkeypatch.setattr("edl_horovod.frameworks.torch.batches.QUICK_SECONDS", 0.005)
    makers, seconds = [], 0.0

    def create_dataset(records, mode):
        makers.append(threading.current_thread())
        time.sleep(seconds)
        return tensors(records, mode)

    batches = make(create_dataset)
    whole = all_of(batches, last=40)
    assert threading.main_thread() in makers[-10:]
    seconds = 0.02
    assert all_of(batches, last=40) == whole
    assert threading.main_thread() not in makers[-10:]


if LATER:

    class OneByOne(Dataset):
        def __init__(self, records):
            self._records = records

        def __len__(self):
            return len(self._records)

        def __getitem__(self, place):
            number = float(self._records[place])
            return {"x": torch.tensor([number])}, number

    class InARow(IterableDataset):
        def __init__(self, records):
            self._records = records

        def __iter__(self):
            for record in self._records:
                if int(record) % 2:
                    yield {"x": torch.tensor([float(record)])}, float(record), 0.5


def generated(records, mode):
    return (({"x": np.float32([record])}, float(record)) for record in records)


@pytest.mark.parametrize(
    "create_dataset",
    [lambda records, mode: OneByOne(records), generated],
    ids=["by place", "generator"],
)
def test_single_examples_become_a_batch(create_dataset):
    first = make(create_dataset).try_first()
    assert first.features["x"].tolist() == [[0.0], [1.0]]
    assert first.labels.tolist() == [0.0, 1.0]
    assert first.weights is None


@pytest.mark.parametrize(
    "create_dataset",
    [
        lambda records, mode: (torch.tensor([[float(record)] for record in records]), None),
        lambda records, mode: ((np.float32([record]), None) for record in records),
    ],
    ids=["tensors", "single examples"],
)
def test_examples_need_no_labels(create_dataset):
    batches = make(create_dataset)
    first = batches.try_first()
    assert first.features.tolist() == [[0.0], [1.0]]
    assert (first.labels, first.num_examples) == (None, 2)
    assert batches.element_spec.labels is None


def test_weights_and_filters():
    batches = make(lambda records, mode: InARow(records))
    batches.restart(range(LANES), 0, 1)
    batch = batches.next_batch()
    assert batch.labels.tolist() == batch.features["x"].flatten().tolist()
    assert all(number % 2 for number in batch.labels.tolist())
    assert batch.weights.tolist() == [0.5] * batch.num_examples
    assert len(batches.record_ids) == BATCH


def test_columns_are_tensors_and_texts():
    seen = []
    make(
        lambda columns, mode: seen.append(columns) or (columns["x"], columns["x"]), layout=COLUMNS
    ).try_first()
    (columns,) = seen
    assert columns["x"].tolist() == [[0.0], [1.0]]
    assert columns["text"] == [b"0", b"1"]
    assert [numbers.tolist() for numbers in columns["many"]] == [[], [1]]


def test_a_prediction_has_features_alone():
    batch = make(lambda records, mode: tensors(records, Mode.TRAINING), Mode.PREDICTION).try_first()
    assert batch.labels is None
    assert batch.features.flatten().tolist() == [0.0, 1.0]


def test_examples_that_stand_for_all_are_found_where_the_first_records_give_none():
    def late(records, mode):
        x, y = tensors(records, mode)
        is_late = x[:, 0] > 17
        return x[is_late], y[is_late]

    batches = make(late)
    assert batches.try_first() is None
    assert batches.element_spec.features.tolist() == [[18.0], [19.0]]
    with pytest.raises(DataError, match=r"training.*20 records"):
        _ = make(lambda records, mode: (torch.ones(0, 1), torch.ones(0, 1))).element_spec


@pytest.mark.parametrize(
    ("create_dataset", "message"),
    [
        (lambda records, mode: None, r"\(features, labels\).*Received: None"),
        (lambda records, mode: torch.ones(2), r"\(features, labels\).*float32\[2\]"),
        (lambda records, mode: (torch.ones(2), torch.ones(3)), "first size"),
        (lambda records, mode: (records, torch.ones(2)), r"first size is the number of examples"),
        (lambda records, mode: (torch.tensor(1.0), torch.ones(2)), r"first size is the number"),
        (
            lambda records, mode: ((torch.arange(5), torch.tensor([0, 2])), torch.ones(2)),
            r"int64\[5\].*shape \(examples, longest\).*nn.EmbeddingBag",
        ),
        (lambda records, mode: (None, torch.ones(2)), r"first size is the number of examples"),
        (lambda records, mode: 1 / 0, r"for records of step 0 failed: ZeroDivisionError"),
    ],
)
def test_what_is_no_batch_is_refused(create_dataset, message):
    with pytest.raises(UserCodeError, match=message):
        make(create_dataset).try_first()


def test_all_examples_can_be_gone_through_again_in_their_order():
    examples = AllExamples(Numbers(), plan_of(num_lanes=1), tiny(create_dataset=tensors))
    for _ in range(2):
        assert torch.cat([x for x, _ in examples]).flatten().tolist() == list(range(NUM))


def test_a_stream_whose_records_are_no_tensors_of_pytorch_is_refused():
    parts = (Part(0, (None, 2), 1),)
    columns = (Column("x", "float32", (None,)), Column("x (shape)", "int64", (2,)))
    with pytest.raises(UserCodeError, match="ragged"):
        make(tensors, layout=Layout(columns, structure=Tensor("dense", parts)))
