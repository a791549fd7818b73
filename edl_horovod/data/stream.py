"""From a rank's lanes to batches: the user's pipeline, applied to one step at a time (D5).

One Python call a step, not a record: a generator yields all records of a step as one string tensor,
and the user's `create_dataset` runs on them inside the tf.data graph, two steps at a time, ahead of
training.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx

from edl_horovod.data.inline_maps import inline_maps
from edl_horovod.data.plan import DataPlan, Ids
from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["Batch", "RecordReader", "StepStream"]

STEPS_IN_PARALLEL = 2
_GRAPH_PLACE = re.compile(
    r"\{\{function_node [^}]*\}\} "
    r"|Error in user-defined function passed to .*? with iterator: \S+ "
    r"| \[Op:IteratorGetNext\] name: *$"
)
NO_IDS: Ids = np.empty(0, np.int64)


class RecordReader(Protocol):
    """What a stream needs of a reader of records."""

    def read_batch(self, ids: npt.NDArray[np.int64]) -> list[bytes]:
        """The records of these ids, in the order asked for."""


@dataclass(frozen=True)
class Batch:
    """The examples of one step on one rank."""

    features: Any
    labels: Any
    """None in `Mode.PREDICTION`."""
    num_examples: int


class StepStream:
    """Batches of consecutive steps; `restart` points it at other lanes or another step.

    The tf.data graph is built and traced once. After a change of the ring only a new iterator is
    made.
    """

    def __init__(
        self, reader: RecordReader, plan: DataPlan, loaded: LoadedSpec, mode: Mode, *, prefetch: int
    ) -> None:
        """Build the graph.

        Args:
            reader: Gives the records.
            plan: Says which records a step holds.
            loaded: The user's spec; its `create_dataset` makes examples of the records.
            mode: Handed to `create_dataset`.
            prefetch: Steps made ready ahead.

        Raises:
            UserCodeError: `create_dataset` raised, or returned something that is not a dataset of
                `(features, labels)` (of features in `Mode.PREDICTION`).
        """
        self._reader = reader
        self._plan = plan
        self._spec = loaded.spec
        self._zoo = loaded.zoo
        self._label = loaded.label
        self._mode = mode
        self._lanes = range(0)
        self._first_step = 0
        self._last_step = 0
        self._dataset = self._build(prefetch)
        self._iterator: Iterator[Any] = iter(())
        self._next_step = 0
        self._held: tuple[int, Batch] | None = None
        self._read_ids: dict[int, Ids] = {}
        self.record_ids: Ids = NO_IDS
        """Ids of the records of the last `next_batch`, also of those that gave no example."""

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """Specs of a batch's features and labels (labels None in `Mode.PREDICTION`)."""
        _, features, *labels = self._dataset.element_spec
        return features, labels[0] if labels else None

    def restart(self, lanes: range, first_step: int, last_step: int) -> None:
        """Read these lanes from a step of the job on; what was made ready before is dropped.

        Args:
            lanes: The lanes that this rank owns now.
            first_step: Step of the job, counted from 0 over all epochs.
            last_step: The step after the last one wanted.
        """
        self._iterator = iter(())
        self._lanes, self._first_step, self._last_step = lanes, first_step, last_step
        self._next_step, self._held = first_step, None
        self._read_ids = {}  # Another one: the former generator may still be at work.
        self._iterator = iter(self._dataset)

    def try_first(self) -> None:
        """Make the examples of the first lane's first records, to see whether that goes.

        Raises:
            DataError: It does not.
        """
        self.restart(range(1), 0, 1)
        self.next_batch()
        self._iterator = iter(())

    def next_batch(self) -> Batch | None:
        """The examples of the next step; None where this rank has none in it.

        Raises:
            DataError: A record could not be read or parsed; names the step.
        """
        step, self._next_step = self._next_step, self._next_step + 1
        if self._held is None:
            self._held = self._pull(step)
        # Read ahead: what follows this step, or the end, has come out already.
        self.record_ids = self._read_ids.pop(step, NO_IDS)
        if self._held is None or self._held[0] != step:
            return None
        batch = self._held[1]
        self._held = None
        return batch

    def _pull(self, step: int) -> tuple[int, Batch] | None:
        try:
            found = next(self._iterator, None)
        except tf.errors.OpError as error:
            raise DataError(
                f"create_dataset of {self._label} in mode {self._mode.value} fails for records of "
                f"step {step}: {_said(error)} Look whether it fits these records; damaged files "
                "can be left out with data_plan.damaged=skip."
            ) from error
        if found is None:
            return None
        at, features, *labels = found
        some = tf.nest.flatten(features)[0]
        return int(at), Batch(features, labels[0] if labels else None, int(some.shape[0]))

    def _generate(self) -> Iterator[tuple[int, npt.NDArray[np.object_]]]:
        """Records of the steps from `restart` on; runs in a tf.data thread."""
        lanes, last_step, read_ids = self._lanes, self._last_step, self._read_ids
        per_epoch = self._plan.steps_per_epoch
        order, order_epoch = None, -1
        for step in range(self._first_step, last_step):
            epoch, within = divmod(step, per_epoch)
            if order is None or epoch != order_epoch:
                order, order_epoch = self._plan.order(epoch), epoch
            ids = order.records(within, lanes)
            if len(ids):
                read_ids[step] = ids
                yield step, np.array(self._reader.read_batch(ids), dtype=object)

    def _build(self, prefetch: int) -> tf.data.Dataset:
        # Autograph would put the user's function into words of its own, also in its errors.
        examples = tf.autograph.experimental.do_not_convert(self._examples)
        records = tf.data.Dataset.from_generator(
            self._generate,
            output_signature=(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((None,), tf.string),
            ),
        )
        dataset = records.interleave(
            examples,
            cycle_length=STEPS_IN_PARALLEL,
            block_length=1,
            num_parallel_calls=STEPS_IN_PARALLEL,
            deterministic=True,
        )
        options = tf.data.Options()
        options.autotune.enabled = False
        # The fused form of map and batch prepares room for a whole batch, and ours has no bound.
        options.experimental_optimization.map_and_batch_fusion = False
        return dataset.prefetch(prefetch).with_options(options)

    def _examples(self, step: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
        """One step's records as a dataset of at most one element: (step, features[, labels])."""
        make = tf.data.Dataset.from_tensors if self._spec.parses_batches else _one_by_one
        doing = f"create_dataset of {self._label} in mode {self._mode.value}"
        # What it maps is converted all the same, as where tf.data is used without us.
        as_outside = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)
        with user_code(doing, root=self._zoo), as_outside:
            dataset = self._spec.create_dataset(make(records), self._mode)
        self._check(dataset)
        inline_maps(tf.compat.v1.get_default_graph())
        if not self._spec.parses_batches:
            # Larger than any step: the whole step becomes one batch, however much was expanded.
            dataset = dataset.batch(1 << 40)
        if self._mode is Mode.PREDICTION:
            return dataset.map(lambda features: (step, features))
        return dataset.map(lambda features, labels: (step, features, labels))

    def _check(self, dataset: Any) -> None:
        name = f"create_dataset of {self._label}"
        if not isinstance(dataset, tf.data.Dataset):
            raise UserCodeError(
                f"{name} must return a tf.data.Dataset. Received: {type(dataset).__name__}. "
                "Return the dataset at its end."
            )
        element = dataset.element_spec
        is_pair = isinstance(element, tuple) and len(element) == 2
        if self._mode is Mode.PREDICTION and isinstance(element, tuple):
            raise UserCodeError(
                f"{name} must give features alone in mode prediction. Received: elements of "
                f"{len(element)} parts. Return only the features where mode is Mode.PREDICTION."
            )
        if self._mode is not Mode.PREDICTION and not is_pair:
            raise UserCodeError(
                f"{name} must give (features, labels) in mode {self._mode.value}. "
                f"Received: {element}. Return both as a tuple of two."
            )


def _one_by_one(records: tf.Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(records)


def _said(error: tf.errors.OpError) -> str:
    """What an op of the user's pipeline, or a record's reader, said; not where it is in ours."""
    lines = [_GRAPH_PLACE.sub("", line).strip() for line in error.message.splitlines()]
    return next((line[:500] for line in lines if line), type(error).__name__)
