"""Batches of a rank's steps: the user's `create_dataset`, applied to one step at a time (D5).

A thread, or processes of the rank, make the examples of the steps that follow while a step is
computed.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.frameworks.torch.decoding import Decoders
from edl_horovod.frameworks.torch.record_tensors import given_records, num_records
from edl_horovod.frameworks.torch.structures import (
    described,
    leaves,
    map_leaves,
    num_examples,
    some_examples,
)
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan, Ids
from edl_horovod.records.source import Records, RecordSource
from edl_horovod.records.spans import StepSpans
from edl_horovod.records.steps import NO_IDS, NO_STEP, ExpectedRestart, StepRecords
from edl_horovod.spec import Mode

__all__ = ["AllExamples", "TorchBatches"]

MOST_PARTS = 3
"""Features, labels and weights."""
_SHOWN_EXAMPLES = 2
"""Of the examples that stand for all: BatchNorm cannot work on one alone."""
_ITERATOR = 0
QUICK_SECONDS = 0.0005
"""Examples that are made in less are made between two steps: for so little, the thread and the step
only take the interpreter from each other."""
STEPS_IN_THREAD = 256
"""The number of steps made in the thread after one that was not quick."""
_COLLATE = {**default_collate_fn_map, type(None): lambda _examples, **_: None}
"""How single examples become a batch: as `default_collate` has it, and without labels."""


class TorchBatches:
    """Batches of consecutive steps; `restart` points it at other lanes or another step."""

    def __init__(
        self,
        source: RecordSource,
        plan: DataPlan,
        loaded: LoadedSpec,
        mode: Mode,
        *,
        prefetch: int,
        processes: int = 0,
    ) -> None:
        """Read nothing yet; see `base.Framework.batches`.

        Raises:
            UserCodeError: The records hold what no tensor of PyTorch can be made of.
        """
        if source.layout is not None and source.layout.needs_assembly:
            raise UserCodeError(
                "PyTorch takes no records with ragged or sparse tensors, or with tensors whose"
                " shapes differ otherwise than in the length of a list.",
                received=source.describe(),
                cure="Give lists, or tensors of the same shape, or encoded pictures as bytes.",
            )
        self._records = StepRecords(source, plan)
        self._layout = source.layout
        self._plan = plan
        self._loaded = loaded
        self._mode = mode
        self._prefetch = prefetch
        # Forked before the threads are there; the user's code is asked by one of them at a time.
        self._decoders = Decoders(self._examples, processes) if processes else None
        self._reading = ThreadPoolExecutor(max(1, processes), thread_name_prefix="batches")
        self._source_lock = threading.Lock()
        self._salt = 0
        self._ahead: deque[Future[tuple[int, Batch | None]]] = deque()
        self._num_asked = 0
        self._num_steps = 0
        self._num_in_thread = prefetch
        """How many steps are still to be made in the thread."""
        self._make_seconds = 0.0
        self._next_step = 0
        self._shown: Batch | None = None
        self._expected = ExpectedRestart(self._restart)
        self.record_ids: Ids = NO_IDS

    @property
    def element_spec(self) -> Batch:
        """Two of the examples, which stand for all; the same ones on every rank.

        Raises:
            DataError: The data give no example at all.
        """
        if self._shown is None:
            self._shown = self._look_for_examples()
        return self._shown

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Read these lanes from a step on; what was made ready before is dropped."""
        if not self._expected.is_this(lanes, first_step, last_step, spans):
            self._restart(lanes, first_step, last_step, spans)

    def expect(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin in a thread a `restart` that is likely to follow with just these arguments."""
        self._expected.begin(lanes, first_step, last_step, spans)

    def try_first(self) -> Batch | None:
        """Make the examples of the first lane's first records; None where these gave none."""
        self.restart(range(1), 0, 1, self._plan.spans(1))
        first = self.next_batch()
        if first is not None:
            self._shown = _shown(first)
        return first

    def next_batch(self) -> Batch | None:
        """The examples of the next step; None where this rank has none in it."""
        step, self._next_step = self._next_step, self._next_step + 1
        self.record_ids = NO_IDS
        if step not in self._records:
            return None
        made, batch = self._ahead.popleft().result() if self._ahead else self._make_now()
        assert made == step, (made, step)
        self._ask()
        self.record_ids = self._records.take_ids(step)
        return batch

    def close(self) -> None:
        """End what reads ahead."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        if self._decoders is not None:
            self._decoders.close()

    def _restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        for asked in self._ahead:
            asked.cancel()
        self._ahead.clear()
        self._records.restart(lanes, first_step, last_step, spans)
        self._next_step, self._salt = first_step, lanes.start
        _, self._num_steps = self._records.take_run(_ITERATOR)
        self._num_asked = 0
        self._num_in_thread = max(self._num_in_thread, self._prefetch)
        self._ask()

    def _ask(self) -> None:
        """Have the examples of the next steps made by the thread, as far as it is to make them."""
        run = self._records.run_number
        while (
            len(self._ahead) < self._prefetch
            and self._num_asked < self._num_steps
            and (self._num_in_thread > 0 or self._decoders is not None)
        ):
            self._ahead.append(self._reading.submit(self._make, run, self._num_asked, self._salt))
            self._num_asked += 1
            self._num_in_thread -= 1

    def _make_now(self) -> tuple[int, Batch | None]:
        """Make the next step's examples, and find out whether that is quick."""
        began = time.perf_counter()
        made = self._make(self._records.run_number, self._num_asked, self._salt)
        self._num_asked += 1
        # An average: now and then another process has the processor.
        self._make_seconds += (time.perf_counter() - began - self._make_seconds) / 16
        if self._make_seconds > QUICK_SECONDS:
            self._num_in_thread, self._make_seconds = STEPS_IN_THREAD, 0.0
        return made

    def _make(self, run: int, number: int, salt: int) -> tuple[int, Batch | None]:
        with self._source_lock:  # It need not bear several threads.
            step, records = self._records.read(run, number)
        if step == NO_STEP or records is None or not num_records(records):
            return step, None
        if self._decoders is None:
            return step, self._examples(step, records)
        return step, self._decoders.make(step, records, salt=salt)

    def _examples(self, step: int, records: Records) -> Batch | None:
        """What the user's code makes of a step's records; None where they give no example."""
        name = f"create_dataset of {self._loaded.label}"

        def doing() -> str:
            return f"{name} in mode {self._mode.value} for records of step {step}"

        with user_code(doing, root=self._loaded.zoo):
            made = self._loaded.spec.create_dataset(
                given_records(records, self._layout), self._mode
            )
            if isinstance(made, Dataset | GeneratorType):
                made = _collated(made)
                if made is None:
                    return None
        parts = self._parts(made, name)
        features, labels, weights = parts
        count = num_examples(features)
        return Batch(features, labels, count, weights) if count else None

    def _parts(self, made: Any, name: str) -> tuple[Any, Any, Any]:
        """Features, labels and weights as tensors of equally many examples."""
        is_tuple = isinstance(made, tuple)
        if self._mode is Mode.PREDICTION:  # Labels and weights are left out.
            given = made[:1] if is_tuple else (made,)
        elif is_tuple and len(made) in (2, MOST_PARTS):
            given = made
        else:
            raise UserCodeError(
                f"{name} must give (features, labels) or (features, labels, sample_weight) in mode"
                f" {self._mode.value}.",
                received=str(described(made)),
                cure="Return them as a tuple of two or three; as tensors of all examples of the"
                " step, or as a torch.utils.data.Dataset of single examples. Where there are no"
                " labels, write (features, None).",
            )
        tensors = tuple(map_leaves(_as_tensor, part) for part in given)
        found = list(leaves(tensors))
        is_batch = all(isinstance(each, torch.Tensor) and each.ndim for each in found)
        has_features = any(True for _ in leaves(tensors[0]))
        if not has_features or not is_batch or len({len(each) for each in found}) != 1:
            raise UserCodeError(
                f"{name} must give tensors whose first size is the number of examples.",
                received=str(described(given)),
                cure="Return tensors of shape (examples, ...), equally many in all of them, or a"
                " torch.utils.data.Dataset of single examples. Pad what differs in length to shape"
                " (examples, longest), for nn.EmbeddingBag, too: with padding_idx it leaves out"
                " the padding, and needs no offsets.",
            )
        features, labels, weights = (*tensors, None, None)[:MOST_PARTS]
        return features, labels, weights

    def _look_for_examples(self) -> Batch:
        spans = self._plan.spans(1)
        self.restart(range(self._plan.num_lanes), 0, spans.first_step_of(1), spans)
        for _ in range(spans.first_step_of(1)):
            batch = self.next_batch()
            if batch is not None:
                return _shown(batch)
        raise DataError(
            f"create_dataset of {self._loaded.label} gives no example in mode {self._mode.value}.",
            received=f"{self._plan.num_records} records",
            cure="Look whether it filters them all.",
        )


class AllExamples:
    """The training examples of one epoch: features, labels, and weights if any, in batches."""

    def __init__(self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec) -> None:
        """Read nothing yet."""
        self._source, self._plan, self._loaded = source, plan, loaded

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Begin at the first record."""
        batches = TorchBatches(self._source, self._plan, self._loaded, Mode.TRAINING, prefetch=1)
        spans = self._plan.spans(1)
        num_steps = spans.first_step_of(1)
        batches.restart(range(self._plan.num_lanes), 0, num_steps, spans)
        for _ in range(num_steps):
            batch = batches.next_batch()
            if batch is not None:
                weights = () if batch.weights is None else (batch.weights,)
                yield (batch.features, batch.labels, *weights)


def _shown(batch: Batch) -> Batch:
    """The first examples of a batch, apart from it."""

    def some(part: Any) -> Any:
        return map_leaves(torch.clone, some_examples(part, 0, _SHOWN_EXAMPLES))

    features = some(batch.features)
    return Batch(features, some(batch.labels), num_examples(features), some(batch.weights))


def _collated(dataset: Iterable[Any]) -> Any:
    """All examples of a data set as one batch; None where it has none."""
    if isinstance(dataset, Dataset) and not isinstance(dataset, IterableDataset):
        examples = [dataset[place] for place in range(len(dataset))]
    else:
        examples = list(dataset)
    if not examples:
        return None
    batch = collate(examples, collate_fn_map=_COLLATE)
    return tuple(batch) if isinstance(examples[0], tuple) else batch


def _as_tensor(value: Any) -> Any:
    """A tensor of an array; whatever is neither stays, and is refused."""
    return torch.as_tensor(value) if hasattr(value, "__array__") else value
