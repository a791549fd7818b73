"""Batches of a rank's steps: the user's pipeline, applied to one step at a time (D5).

One Python call a step, not a record: it gives all records of a step as one string tensor. The
user's `create_dataset` runs on them inside the tf.data graph, two steps at a time, ahead of
training.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx

from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.frameworks.keras.functional import num_examples
from edl_horovod.frameworks.keras.inline_maps import inline_maps
from edl_horovod.frameworks.keras.padding import pad_to_lengths
from edl_horovod.frameworks.keras.record_tensors import RecordTensors
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.parts import gives
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan, Ids
from edl_horovod.records.source import RecordSource
from edl_horovod.records.spans import StepSpans
from edl_horovod.records.steps import NO_IDS, ExpectedRestart, StepRecords
from edl_horovod.spec import Mode, padding_of

__all__ = ["KerasBatches", "all_examples"]

STEPS_IN_PARALLEL = 2
MOST_PARTS = 3
"""Features, labels and weights."""
_GRAPH_PLACE = re.compile(
    r"\{\{function_node [^}]*\}\} "
    r"|Error in user-defined function passed to .*? with iterator: \S+ "
    r"| \[Op:IteratorGetNext\] name: *$"
)
_NO_END = np.iinfo(np.int64).max


class KerasBatches:
    """Batches of consecutive steps; `restart` points it at other lanes or another step.

    The tf.data graph is built and traced once. Its iterator goes from one run to the next as long
    as none of them is read to its end, because a new one takes some 40 ms before its first element.
    What it has made ready of the former run by then is passed over.
    """

    def __init__(
        self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec, mode: Mode, *, prefetch: int
    ) -> None:
        """Build the graph; see `base.Framework.batches`.

        Raises:
            UserCodeError: `create_dataset` raised, or returned something that is not a dataset of
                `(features, labels)` (of features in `Mode.PREDICTION`).
        """
        self._records = StepRecords(source, plan)
        self._tensors = RecordTensors(source.layout)
        self._plan = plan
        self._spec = loaded.spec
        self._zoo = loaded.zoo
        self._label = loaded.label
        self._mode = mode
        if self._spec.parses_batches and self._tensors.needs_assembly:
            raise UserCodeError(
                f"{loaded.label} has parses_batches = True, and the records hold tensors of"
                " differing shapes, ragged or sparse ones, which cannot be stacked.",
                received=source.describe(),
                cure="Set parses_batches = False: create_dataset then gets one record after the"
                " other.",
            )
        self._dataset = self._build(prefetch)
        self._iterator: Iterator[Any] | None = None
        self._num_iterators = 0
        self._is_changing = False
        """Whether the iterator may still give elements of a former run."""
        self._next_step = 0
        self._held: tuple[int, Batch] | None = None
        self._expected = ExpectedRestart(self._restart_and_pull)
        self.record_ids: Ids = NO_IDS

    @property
    def element_spec(self) -> tuple[Any, ...]:
        """Specs of a batch's features, labels (None in `Mode.PREDICTION`), and weights if any."""
        _, _, *parts = self._dataset.element_spec
        return (*parts, None) if self._mode is Mode.PREDICTION else tuple(parts)

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
        # Longer than is asked for, so that the iterator is there for the first true run.
        spans = self._plan.spans(1)
        self.restart(range(1), 0, spans.first_step_of(1), spans)
        return self.next_batch()

    def close(self) -> None:
        """Nothing is open that does not end with the process."""

    def next_batch(self) -> Batch | None:
        """The examples of the next step; None where this rank has none in it."""
        step, self._next_step = self._next_step, self._next_step + 1
        if step not in self._records:
            self.record_ids = NO_IDS
            return None
        if self._held is None:
            self._held = self._pull(step)
        # Read ahead: what follows this step, or the end, has come out already.
        self.record_ids = self._records.take_ids(step)
        if self._held is None or self._held[0] != step:
            return None
        batch = self._held[1]
        self._held = None
        return batch

    def _restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        self._records.restart(lanes, first_step, last_step, spans)
        self._next_step, self._held = first_step, None
        if self._iterator is None:
            self._iterate()
        else:
            self._is_changing = True

    def _restart_and_pull(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        self._restart(lanes, first_step, last_step, spans)
        self._held = self._pull(first_step)

    def _iterate(self) -> None:
        self._iterator = None
        self._num_iterators += 1
        self._is_changing = False
        self._iterator = iter(self._dataset)

    def _pull(self, step: int) -> tuple[int, Batch] | None:
        try:
            found = self._next_of_run()
        except tf.errors.OpError as error:
            unread = self._records.failure_of(step)
            if unread is not None:
                raise unread from error
            raise DataError(
                f"create_dataset of {self._label} in mode {self._mode.value} fails for records of "
                f"step {step}: {_said(error)} Look whether it fits these records, "
                "which are whole: no setting leaves them out."
            ) from error
        if found is None:
            return None
        _, at, features, *rest = found
        labels, weights = (*rest, None, None)[:2]
        return int(at), Batch(features, labels, int(num_examples(features)), weights)

    def _next_of_run(self) -> Any:
        """The next element of the latest run; None after its last."""
        while True:
            if self._iterator is None:
                return None
            try:
                found = next(self._iterator, None)
            except tf.errors.OpError:
                if not self._is_changing:
                    raise
                self._iterate()  # It was about a former run, or it is raised again.
                continue
            if found is None:
                has_taken_it = self._records.has_taken_run(self._num_iterators)
                self._iterator = None
                if not has_taken_it:
                    self._iterate()  # It had come to its end before the latest run began.
            elif int(found[0]) == self._records.run_number:
                self._is_changing = False
                return found

    def _build(self, prefetch: int) -> tf.data.Dataset:
        # Autograph would put the user's function into words of its own, also in its errors; to
        # convert ours, which gain nothing by it, takes a third of the time that a worker gets warm.
        examples, records_of = map(
            tf.autograph.experimental.do_not_convert, (self._examples, self._runs)
        )
        # Not `from_generator`: that spends 0.1 ms a step more on the same call.
        records = tf.data.Dataset.from_tensors(0).flat_map(records_of)
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

    def _runs(self, _: tf.Tensor) -> tf.data.Dataset:
        """Steps with their records: of the run that is the latest, and then of those that follow.

        It ends where a run is at its end and none has followed; as long as some are there, it goes
        to the latest one as soon as it is asked for another step.
        """

        def run_of(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            run, num_steps = tf.numpy_function(self._take_run, [iterator], (tf.int64, tf.int64))
            return tf.ensure_shape(run, ()), tf.ensure_shape(num_steps, ())

        def steps_of(run: tf.Tensor, num_steps: tf.Tensor) -> tf.data.Dataset:
            def records_of(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
                types = (tf.int64, *self._tensors.types)
                step, *arrays = tf.numpy_function(self._read, [run, number], types)
                return run, tf.ensure_shape(step, ()), self._tensors.records(arrays)

            return tf.data.Dataset.range(num_steps).map(records_of).take_while(_is_there)

        iterator = tf.numpy_function(lambda: np.int64(self._num_iterators), [], tf.int64)
        runs = tf.data.Dataset.range(_NO_END).map(run_of).take_while(lambda run, _: run >= 0)
        dataset = runs.flat_map(steps_of)
        inline_maps(tf.compat.v1.get_default_graph())
        return dataset

    def _take_run(self, iterator: np.int64) -> tuple[np.int64, np.int64]:
        run, num_steps = self._records.take_run(int(iterator))
        return np.int64(run), np.int64(num_steps)

    def _read(self, run: np.int64, number: np.int64) -> list[Any]:
        """A step and its records; tf.data threads call it one call after the other."""
        step, records = self._records.read(int(run), int(number))
        return [np.int64(step), *self._tensors.arrays(records)]

    def _examples(self, run: tf.Tensor, step: tf.Tensor, records: Any) -> tf.data.Dataset:
        """One step's records as at most one element: (run, step, features[, labels[, weights]])."""
        make = self._one_by_one
        if self._spec.parses_batches:
            make = _at_once_if_any if self._plan.is_growing else tf.data.Dataset.from_tensors
        doing = f"create_dataset of {self._label} in mode {self._mode.value}"
        # What it maps is converted all the same, as where tf.data is used without us.
        as_outside = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)
        with user_code(doing, root=self._zoo), as_outside:
            dataset = self._spec.create_dataset(make(records), self._mode)
        self._check(dataset)
        inline_maps(tf.compat.v1.get_default_graph())
        if (padding := padding_of(dataset)) is not None:
            dataset = pad_to_lengths(dataset, padding)
        elif not self._spec.parses_batches:
            # Larger than any step: the whole step becomes one batch, however much was expanded.
            dataset = dataset.batch(1 << 40)
        if not isinstance(dataset.element_spec, tuple):
            return dataset.map(lambda features: (run, step, features))
        if self._mode is Mode.PREDICTION:  # Labels and weights are left out, as Keras does.
            return dataset.map(lambda features, *_: (run, step, features))
        return dataset.map(lambda *parts: (run, step, *parts))

    def _one_by_one(self, records: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(records)
        if not self._tensors.needs_assembly:
            return dataset
        return dataset.map(tf.autograph.experimental.do_not_convert(self._tensors.element))

    def _check(self, dataset: Any) -> None:
        name = f"create_dataset of {self._label}"
        if not gives(type(self._spec), "create_dataset"):
            name = f"{self._label} has no create_dataset (input_fn), so the data"
        if not isinstance(dataset, tf.data.Dataset):
            raise UserCodeError(
                f"{name} must return a tf.data.Dataset.",
                received=type(dataset).__name__,
                cure="Return the dataset at its end.",
            )
        element = dataset.element_spec
        if self._mode is Mode.PREDICTION:
            if isinstance(element, tuple) and len(element) > MOST_PARTS:
                raise UserCodeError(
                    f"{name} must give features in mode prediction.",
                    received=f"elements of {len(element)} parts",
                    cure="A tuple is features, labels and weights, as in Keras: return features"
                    " that are a tuple as the only part of one, (features,).",
                )
        elif not isinstance(element, tuple) or len(element) not in (2, MOST_PARTS):
            raise UserCodeError(
                f"{name} must give (features, labels) or (features, labels, sample_weight) in mode"
                f" {self._mode.value}.",
                received=str(element),
                cure="Return them as a tuple of two or three.",
            )


@contextlib.contextmanager
def all_examples(
    source: RecordSource, plan: DataPlan, loaded: LoadedSpec
) -> Iterator[tf.data.Dataset]:
    """The training examples of one epoch: features, labels, and weights if any, in batches.

    Raises:
        DataError: A record could not be read, in place of the error that TensorFlow makes of it.
        UserCodeError: As for `KerasBatches`.
    """
    failures: list[DataError] = []

    def make() -> KerasBatches:
        return KerasBatches(source, plan, loaded, Mode.TRAINING, prefetch=1)

    def epoch() -> Iterator[tuple[Any, ...]]:
        # Its own for each reading: two may go on at the same time, as in `zip`.
        batches, spans = make(), plan.spans(1)
        num_steps = spans.first_step_of(1)
        batches.restart(range(plan.num_lanes), 0, num_steps, spans)
        for _ in range(num_steps):
            try:
                batch = batches.next_batch()
            except DataError as e:
                failures.append(e)
                raise
            if batch is not None:
                weights = () if batch.weights is None else (batch.weights,)
                yield (batch.features, batch.labels, *weights)

    try:
        yield tf.data.Dataset.from_generator(epoch, output_signature=make().element_spec)
    except UserCodeError:  # TensorFlow's report of it, as the user's code got it.
        if not failures:
            raise
        raise failures[0] from failures[0].__cause__


def _is_there(run: tf.Tensor, step: tf.Tensor, records: Any) -> tf.Tensor:
    return step >= 0


def _at_once_if_any(records: Any) -> tf.data.Dataset:
    # Where the batch grows with the ring, a rank may have no record in a step amid an epoch.
    some = tf.nest.flatten(records)[0]
    rows = some.nrows() if isinstance(some, tf.RaggedTensor) else tf.shape(some, tf.int64)[0]
    num = tf.minimum(rows, 1)
    return tf.data.Dataset.from_tensors(records).take(num)


def _said(error: tf.errors.OpError) -> str:
    """What an op of the user's pipeline, or a record's reader, said; not where it is in ours."""
    lines = [_GRAPH_PLACE.sub("", line).strip() for line in error.message.splitlines()]
    return next((line[:500] for line in lines if line), type(error).__name__)
