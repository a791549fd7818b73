"""Batches of a rank's steps: the user's `create_dataset` is applied to one step at a time (D5).

It receives the step's records as bytes or columns. A thread, or processes of the rank, prepare the
examples of the next steps while a step is computed.
"""

import contextlib
import ctypes
import hashlib
import os
import pickle
import queue
import random
import signal
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import GeneratorType
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from edl_horovod.errors import DataError, EdlError, UserCodeError, error_kind, error_of_kind
from edl_horovod.frameworks.batches import MAX_PARTS, StepBatches, wrong_parts
from edl_horovod.frameworks.torch.structures import describe, leaves, map_batch, map_leaves
from edl_horovod.frameworks.torch.variables import from_numpy, to_numpy
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.layout import BYTES, Layout
from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.records.source import Records, RecordSource
from edl_horovod.records.steps import NO_STEP
from edl_horovod.spec import Mode

Make: TypeAlias = Callable[[int, Records], Batch | None]
"""Makes a batch from a step number and the step's records; None if they have no examples."""
_PR_SET_PDEATHSIG = 1
_NUM_SAMPLES = 2
"""The number of sample examples; two, because BatchNorm cannot work on one."""
_ITERATOR = 0
QUICK_SECONDS = 0.0005
"""Batches that take less time are made between two steps, without the thread: the thread and the
step would only compete for the interpreter."""
STEPS_IN_THREAD = 256
"""The number of steps that are made in the thread after their average was not quick."""
_COLLATE = {**default_collate_fn_map, type(None): lambda _examples, **_: None}
"""Collates single examples to a batch as `default_collate` does, and also labels that are None."""


class Decoders:
    """A pool of processes that make examples; thread-safe.

    They are for when a Python thread is too slow. They are forked when the batches are created, so
    they inherit the user's loaded spec. The rank reads the records and sends them to a process,
    which returns the examples as plain bytes: shared memory is scarce in pods and would outlive a
    rank that is killed.
    """

    def __init__(self, make: Make, num_processes: int) -> None:
        """Fork the processes. The calling thread must live as long as the rank: they end with it.

        Args:
            make: The function that the processes run; it may raise EdlError.
            num_processes: At least one.
        """
        self._channels: dict[int, Connection] = {}
        """The rank's end of each process' channel, by its PID."""
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        """The PIDs of the processes that make nothing."""
        rank = os.getpid()
        for _ in range(num_processes):
            channel, child_channel = Pipe()
            pid = os.fork()
            if pid == 0:
                # An inherited copy of a channel would keep it open after the rank has closed it.
                for inherited in (channel, *self._channels.values()):
                    inherited.close()
                _serve(child_channel, make, rank)
            child_channel.close()
            self._channels[pid] = channel
            self._idle.put(pid)

    def make(self, step: int, records: Records, *, salt: int) -> Batch | None:
        """Make the examples of a step in an idle process.

        Args:
            step: Number of the step in the job.
            records: The records as the source returned them.
            salt: Part of the seed of this rank's random numbers, different on each rank.

        Raises:
            EdlError: `make` raised it.
            ChildProcessError: The process has died.
        """
        pid = self._idle.get()
        channel = self._channels[pid]
        try:
            channel.send_bytes(pickle.dumps((step, records, salt)))
            answer = pickle.loads(channel.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise ChildProcessError(
                f"The process {pid} of this rank, which makes examples from records, died at step"
                f" {step}. It may have run out of memory."
            ) from error
        finally:
            self._idle.put(pid)
        if isinstance(answer, Batch):
            return map_batch(from_numpy, answer)
        if answer is not None:
            raise error_of_kind(*answer)
        return None

    def close(self) -> None:
        """Kill the processes."""
        for pid, channel in self._channels.items():
            channel.close()
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _serve(channel: Connection, make: Make, rank: int) -> NoReturn:
    """Answer requests until the rank ends or closes the channel."""
    try:
        # The kernel kills this process with its parent, even if the user's code never returns.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != rank:
            os._exit(1)
        # A rank that is asked to leave finishes its step first, for which it needs the examples.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        torch.set_num_threads(1)
        seed = torch.initial_seed() % (1 << 63)
        while True:
            step, records, salt = pickle.loads(channel.recv_bytes())
            _begin_step(seed, step, salt)
            channel.send_bytes(pickle.dumps(_answer(make, step, records)))
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException:  # The outermost frame of this process.
        traceback.print_exc()
        os._exit(1)


def _answer(make: Make, step: int, records: Records) -> Batch | tuple[str, str] | None:
    """Return the examples as arrays, or the kind and the text of an error."""
    try:
        batch = make(step, records)
    except EdlError as error:
        return error_kind(error), str(error)
    return None if batch is None else map_batch(to_numpy, batch)


def _begin_step(seed: int, step: int, salt: int) -> None:
    """Seed the random numbers of a step, so that they do not depend on the process."""
    number = step_seed(seed, step, salt)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % (1 << 32))  # Users' transforms often draw from this generator.


def step_seed(seed: int, step: int, salt: int) -> int:
    """Return the seed of a step's random numbers.

    Args:
        seed: The seed of the job.
        step: The step's number in the job.
        salt: A number that differs between the ranks.
    """
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, salt), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class TorchBatches(StepBatches):
    """Batches of a PyTorch model."""

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
        """Prepare the batches without reading; the arguments are those of `base.Framework.batches`.

        Raises:
            UserCodeError: The records have a layout that PyTorch's tensors cannot represent.
        """
        if source.layout is not None and source.layout.needs_assembly:
            raise UserCodeError(
                "Records with ragged or sparse tensors, or with tensors whose shapes differ in more"
                " than the length of a list, cannot be used with PyTorch.",
                received=source.describe(),
                hint="Use lists, tensors of the same shape, or encoded images as bytes.",
            )
        super().__init__(source, plan)
        self._layout, self._loaded = source.layout, loaded
        self._mode, self._prefetch = mode, prefetch
        # The processes are forked before the threads start. Each runs user code for one thread at a
        # time.
        self._decoders = Decoders(self._examples, processes) if processes else None
        self._executor = ThreadPoolExecutor(max(1, processes), thread_name_prefix="batches")
        self._source_lock = threading.Lock()
        self._salt = 0
        self._pending: deque[Future[tuple[int, Batch | None]]] = deque()
        self._num_submitted = self._num_steps = 0
        self._num_in_thread = prefetch
        """The number of steps that are still to be made in the thread."""
        self._make_seconds = 0.0
        self._samples: Batch | None = None

    @property
    def element_spec(self) -> Batch:
        """Sample examples, from which the model is built; the same ones on every rank.

        Raises:
            DataError: The data contain no example at all.
        """
        if self._samples is None:
            first = next(self.epoch(), None)
            if first is None:
                raise DataError(
                    f"create_dataset of {self._loaded.label} returns no examples in mode"
                    f" {self._mode.value}.",
                    received=f"{self._plan.num_records} records",
                    hint="Check whether it filters out all records.",
                )
            self._samples = _samples_of(first)
        return self._samples

    def try_first(self) -> Batch | None:
        """Make the examples of the first lane's first step; None if there are none."""
        self.restart(range(1), 0, 1, self._plan.spans(1))
        first = self.next_batch()
        if first is not None:
            self._samples = _samples_of(first)
        return first

    def close(self) -> None:
        """Stop the threads and processes."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._decoders is not None:
            self._decoders.close()

    def _restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        super()._restart(lanes, first_step, last_step, spans)
        self._salt = lanes.start
        _, self._num_steps = self._records.take_run(_ITERATOR)
        self._num_submitted = 0
        self._num_in_thread = max(self._num_in_thread, self._prefetch)
        self._submit()

    def _take(self, step: int) -> Batch | None:
        made_step, batch = self._pending.popleft().result() if self._pending else self._make_now()
        assert made_step == step, (made_step, step)
        self._submit()
        return batch

    def _submit(self) -> None:
        """Submit the next steps to the thread, up to the limits of prefetching."""
        run = self._records.run_number
        while (
            len(self._pending) < self._prefetch
            and self._num_submitted < self._num_steps
            and (self._num_in_thread > 0 or self._decoders is not None)
        ):
            future = self._executor.submit(self._make, run, self._num_submitted, self._salt)
            self._pending.append(future)
            self._num_submitted += 1
            self._num_in_thread -= 1

    def _make_now(self) -> tuple[int, Batch | None]:
        """Make the next step's examples in this thread, and measure whether that is quick."""
        began = time.perf_counter()
        step_and_batch = self._make(self._records.run_number, self._num_submitted, self._salt)
        self._num_submitted += 1
        # An average, as a single measurement may include another process' use of the processor.
        self._make_seconds += (time.perf_counter() - began - self._make_seconds) / 16
        if self._make_seconds > QUICK_SECONDS:
            self._num_in_thread, self._make_seconds = STEPS_IN_THREAD, 0.0
        return step_and_batch

    def _make(self, run: int, number: int, salt: int) -> tuple[int, Batch | None]:
        with self._source_lock:  # A source need not be thread-safe.
            step, records = self._records.read(run, number)
        if step == NO_STEP or records is None or not _num_records(records):
            return step, None
        if self._decoders is None:
            return step, self._examples(step, records)
        return step, self._decoders.make(step, records, salt=salt)

    def _examples(self, step: int, records: Records) -> Batch | None:
        """Call `create_dataset` for a step's records; None if the result has no examples."""
        name = f"create_dataset of {self._loaded.label}"

        def doing() -> str:
            return f"{name} in mode {self._mode.value} for records of step {step}"

        with user_code(doing, root=self._loaded.zoo):
            user_records = _records_for_user(records, self._layout)
            dataset = self._loaded.spec.create_dataset(user_records, self._mode)
            if isinstance(dataset, Dataset | GeneratorType):
                dataset = _collate(dataset)
                if dataset is None:
                    return None
        return self._as_batch(dataset, name)

    def _as_batch(self, returned: Any, name: str) -> Batch | None:
        """Check what `create_dataset` returned; None if it has no examples."""
        is_tuple = isinstance(returned, tuple)
        if self._mode is Mode.PREDICTION:  # Labels and weights are left out.
            parts = returned[:1] if is_tuple else (returned,)
        elif is_tuple and len(returned) in (2, MAX_PARTS):
            parts = returned
        else:
            raise wrong_parts(
                name,
                self._mode,
                received=str(describe(returned)),
                hint="Return a tuple of two or three: tensors of all examples of the step, or a"
                " torch.utils.data.Dataset of single examples. If there are no labels, return"
                " (features, None).",
            )
        tensors = tuple(map_leaves(_as_tensor, part) for part in parts)
        tensor_leaves = list(leaves(tensors))
        is_batch = all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in tensor_leaves)
        has_features = any(True for _ in leaves(tensors[0]))
        if not has_features or not is_batch or len({len(leaf) for leaf in tensor_leaves}) != 1:
            raise UserCodeError(
                f"{name} must return tensors whose first size is the number of examples.",
                received=str(describe(parts)),
                hint="Return tensors of shape (examples, ...) with the same number of examples, or"
                " a torch.utils.data.Dataset of single examples. Pad sequences of different lengths"
                " to shape (examples, longest), also for nn.EmbeddingBag: with padding_idx it"
                " ignores the padding, and it needs no offsets.",
            )
        features, labels, weights = (*tensors, None, None)[:MAX_PARTS]
        count = len(tensor_leaves[0])
        return Batch(features, labels, count, weights) if count else None


class AllExamples:
    """The training examples of one epoch: features, labels, and weights if any, in batches."""

    def __init__(self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec) -> None:
        self._source, self._plan, self._loaded = source, plan, loaded

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the batches from the first record on."""
        batches = TorchBatches(self._source, self._plan, self._loaded, Mode.TRAINING, prefetch=1)
        return (batch.examples for batch in batches.epoch())


def _samples_of(batch: Batch) -> Batch:
    """Copy the first examples of a batch."""
    count = min(_NUM_SAMPLES, batch.num_examples)
    return map_batch(lambda tensor: tensor[:count].clone(), batch, count)


def _collate(dataset: Iterable[Any]) -> Any:
    """Collate all examples of a data set to one batch; None if it has none."""
    if isinstance(dataset, Dataset) and not isinstance(dataset, IterableDataset):
        examples = [dataset[index] for index in range(len(dataset))]
    else:
        examples = list(dataset)
    if not examples:
        return None
    batch = collate(examples, collate_fn_map=_COLLATE)
    return tuple(batch) if isinstance(examples[0], tuple) else batch


def _as_tensor(value: Any) -> Any:
    """Convert arrays to tensors; other values are returned as they are, and refused later."""
    return torch.as_tensor(value) if hasattr(value, "__array__") else value


def _num_records(records: Records) -> int:
    """Return the number of records."""
    first = records[0] if records else b""
    return len(records) if isinstance(first, bytes) else len(first)


def _records_for_user(records: Records, layout: Layout | None) -> Any:
    """Convert a step's records for the user's code.

    Args:
        records: The records as the source returned them.
        layout: The source's columns; None if a record is bytes.

    Returns:
        A list of bytes; or, packed as the source packs a record, one value for each column: a
        tensor of shape (records, ...), a list of tensors if the records differ in length, or a list
        of bytes for text.
    """
    if layout is None:
        return records
    columns = [
        _column(values, is_text=column.dtype == BYTES)
        for column, values in zip(layout.columns, records, strict=True)
        if not isinstance(values, bytes)
    ]
    return layout.pack(columns)


def _column(values: Values, *, is_text: bool) -> Any:
    if isinstance(values, Ragged):
        lengths = values.lengths.tolist()
        if is_text:
            remaining = iter(values.values)
            return [[next(remaining) for _ in range(length)] for length in lengths]
        return list(torch.split(torch.as_tensor(values.values), lengths))
    return values.tolist() if is_text else torch.as_tensor(values)
