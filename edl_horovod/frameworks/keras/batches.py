"""Batches of a rank's steps: the user's pipeline, applied to one step at a time (D5).

There is one Python call for each step, not for each record: it returns all records of a step as one
string tensor, or as one tensor for each column. The user's `create_dataset` runs on them inside the
tf.data graph, two steps at a time, ahead of training.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.autograph.core import ag_ctx

from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.frameworks.batches import MAX_PARTS, StepBatches, wrong_parts
from edl_horovod.frameworks.keras.functional import num_examples
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import user_code
from edl_horovod.models.parts import overrides_method
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.columns import Ragged, empty
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Structure
from edl_horovod.records.plan import DataPlan, StepSpans
from edl_horovod.records.source import Records, RecordSource
from edl_horovod.spec import Mode, Padding, padding_of

STEPS_IN_PARALLEL = 2
_GRAPH_LOCATION = re.compile(
    r"\{\{function_node [^}]*\}\} "
    r"|Error in user-defined function passed to .*? with iterator: \S+ "
    r"| \[Op:IteratorGetNext\] name: *$"
)
_MAX_INT64 = np.iinfo(np.int64).max

_MAP_OP = "MapDataset"
_PARALLELISM = "use_inter_op_parallelism"
# The executor that runs ops in the requesting thread rejects control flow. tf.cond, tf.while_loop
# and autograph compile to these ops.
_CONTROL_FLOW = frozenset(
    {"Case", "Enter", "Exit", "For", "If", "LoopCond", "Merge", "NextIteration", "RefEnter"}
    | {"RefExit", "RefMerge", "RefNextIteration", "RefSwitch", "StatelessCase", "StatelessIf"}
    | {"StatelessWhile", "Switch", "While"}
)


class KerasBatches(StepBatches):
    """Batches of a Keras model.

    The tf.data graph is built and traced once. The iterator continues from one run to the next
    unless a run was read to its end, because a new iterator takes some 40 ms before its first
    element. Prefetched elements of an earlier run are skipped.
    """

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
        """Build the tf.data graph.

        Args:
            source: Reads the records.
            plan: Determines the records of a step.
            loaded: The user's spec.
            mode: Passed to `create_dataset`.
            prefetch: The number of steps to prepare ahead.
            processes: Must be 0.

        Raises:
            ConfigError: `processes` is set.
            UserCodeError: `create_dataset` raised, or returned something that is not a dataset of
                `(features, labels)` (of features in `Mode.PREDICTION`).
        """
        if processes:
            raise ConfigError(
                "data_plan.processes only applies to PyTorch: a tf.data pipeline runs in parallel"
                " by itself.",
                received={"data_plan.processes": processes},
                hint="Remove data_plan.processes.",
            )
        super().__init__(source, plan)
        self._tensors = _RecordTensors(source.layout)
        self._loaded, self._spec, self._mode = loaded, loaded.spec, mode
        if self._spec.parses_batches and self._tensors.needs_assembly:
            raise UserCodeError(
                f"{loaded.label} has parses_batches = True, but the records contain tensors of"
                " different shapes, ragged or sparse ones, which cannot be stacked.",
                received=source.describe(),
                hint="Set parses_batches = False: create_dataset then gets the records one by one.",
            )
        self._dataset = self._build(prefetch)
        self._iterator: Iterator[Any] | None = None
        self._num_iterators = 0
        self._may_be_stale = False
        """Whether the iterator may still return elements of an earlier run."""
        self._buffered: tuple[int, Batch] | None = None

    @property
    def element_spec(self) -> tuple[Any, ...]:
        """Specs of a batch's features, labels (None in `Mode.PREDICTION`), and weights if any."""
        _, _, *parts = self._dataset.element_spec
        return (*parts, None) if self._mode is Mode.PREDICTION else tuple(parts)

    def try_first(self) -> Batch | None:
        """Build the examples of the first lane's first records; None if these yield no example."""
        # A longer run than needed, so that the iterator can continue with the first real run.
        spans = self._plan.spans(1)
        self.restart(range(1), 0, spans.first_step_of(1), spans)
        return self.next_batch()

    def close(self) -> None:
        """Do nothing: all resources end with the process."""

    def _restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        super()._restart(lanes, first_step, last_step, spans)
        self._buffered = None
        if self._iterator is None:
            self._start_iterator()
        else:
            self._may_be_stale = True

    def _restart_ahead(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None
    ) -> None:
        self._restart(lanes, first_step, last_step, spans)
        self._buffered = self._pull(first_step)

    def _take(self, step: int) -> Batch | None:
        if self._buffered is None:
            self._buffered = self._pull(step)
        # `_buffered` may already hold a later step; None means the end of the run.
        if self._buffered is None or self._buffered[0] != step:
            return None
        batch = self._buffered[1]
        self._buffered = None
        return batch

    def _start_iterator(self) -> None:
        self._iterator = None
        self._num_iterators += 1
        self._may_be_stale = False
        self._iterator = iter(self._dataset)

    def _pull(self, step: int) -> tuple[int, Batch] | None:
        try:
            element = self._next_element()
        except tf.errors.OpError as error:
            read_error = self._records.failure_of(step)
            if read_error is not None:
                raise read_error from error
            raise DataError(
                f"create_dataset of {self._loaded.label} in mode {self._mode.value} fails for"
                f" records of step {step}: {_summary(error)} The records are not damaged, so no"
                " setting skips them: check that create_dataset fits them."
            ) from error
        if element is None:
            return None
        _, element_step, features, *rest = element
        labels, weights = (*rest, None, None)[:2]
        return int(element_step), Batch(features, labels, int(num_examples(features)), weights)

    def _next_element(self) -> Any:
        """Return the next element of the latest run; None after its last."""
        while True:
            if self._iterator is None:
                return None
            try:
                element = next(self._iterator, None)
            except tf.errors.OpError:
                if not self._may_be_stale:
                    raise
                self._start_iterator()  # An error of an earlier run; else it will be raised again.
                continue
            if element is None:
                has_taken_run = self._records.has_taken_run(self._num_iterators)
                self._iterator = None
                if not has_taken_run:
                    self._start_iterator()  # It ended before the latest run began.
            elif int(element[0]) == self._records.run_number:
                self._may_be_stale = False
                return element

    def _build(self, prefetch: int) -> tf.data.Dataset:
        # Not converted by Autograph: conversion would rewrite the user's function, also in its
        # error messages, and take a third of a worker's warm-up time for our own functions.
        batch_of_step, steps_of_runs = map(
            tf.autograph.experimental.do_not_convert, (self._examples, self._runs)
        )
        # `from_generator` would take 0.1 ms a step more for the same call.
        records = tf.data.Dataset.from_tensors(0).flat_map(steps_of_runs)
        dataset = records.interleave(
            batch_of_step,
            cycle_length=STEPS_IN_PARALLEL,
            block_length=1,
            num_parallel_calls=STEPS_IN_PARALLEL,
            deterministic=True,
        )
        options = tf.data.Options()
        options.autotune.enabled = False
        # Fused map and batch allocates a whole batch in advance, and our batch size is unbounded.
        options.experimental_optimization.map_and_batch_fusion = False
        return dataset.prefetch(prefetch).with_options(options)

    def _runs(self, _: tf.Tensor) -> tf.data.Dataset:
        """Build the data set of steps with their records, of the latest run and later ones.

        A new run replaces the current one at the next requested step. The data set ends after the
        last step of a run that no other run has replaced.
        """

        def run_of(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            run, num_steps = tf.numpy_function(self._take_run, [iterator], (tf.int64, tf.int64))
            return tf.ensure_shape(run, ()), tf.ensure_shape(num_steps, ())

        def steps_of(run: tf.Tensor, num_steps: tf.Tensor) -> tf.data.Dataset:
            def records_of(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
                types = (tf.int64, *self._tensors.types)
                step, *arrays = tf.numpy_function(self._read, [run, number], types)
                return run, tf.ensure_shape(step, ()), self._tensors.records(arrays)

            return tf.data.Dataset.range(num_steps).map(records_of).take_while(_is_step)

        iterator = tf.numpy_function(lambda: np.int64(self._num_iterators), [], tf.int64)
        runs = tf.data.Dataset.range(_MAX_INT64).map(run_of).take_while(lambda run, _: run >= 0)
        dataset = runs.flat_map(steps_of)
        inline_maps(tf.compat.v1.get_default_graph())
        return dataset

    def _take_run(self, iterator: np.int64) -> tuple[np.int64, np.int64]:
        run, num_steps = self._records.take_run(int(iterator))
        return np.int64(run), np.int64(num_steps)

    def _read(self, run: np.int64, number: np.int64) -> list[Any]:
        """Read a step's number and its records; tf.data threads never call this concurrently."""
        step, records = self._records.read(int(run), int(number))
        return [np.int64(step), *self._tensors.arrays(records)]

    def _examples(self, run: tf.Tensor, step: tf.Tensor, records: Any) -> tf.data.Dataset:
        """Turn a step's records into at most one (run, step, features[, labels[, weights]])."""
        to_dataset = self._one_by_one
        if self._spec.parses_batches:
            to_dataset = _whole_if_any if self._plan.is_growing else tf.data.Dataset.from_tensors
        doing = f"create_dataset of {self._loaded.label} in mode {self._mode.value}"
        # Functions that the user maps are still converted by Autograph, as usual in tf.data.
        default_conversion = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)
        with user_code(doing, root=self._loaded.zoo), default_conversion:
            dataset = self._spec.create_dataset(to_dataset(records), self._mode)
        self._require_dataset(dataset)
        inline_maps(tf.compat.v1.get_default_graph())
        if (padding := padding_of(dataset)) is not None:
            dataset = pad_to_lengths(dataset, padding)
        elif not self._spec.parses_batches:
            # Larger than any step, so that the step becomes one batch even after a flat_map.
            dataset = dataset.batch(1 << 40)
        # In predictions, labels and weights are dropped, as in Keras.
        num_parts = 1 if self._mode is Mode.PREDICTION else MAX_PARTS
        return dataset.map(lambda *parts: (run, step, *parts[:num_parts]))

    def _one_by_one(self, records: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(records)
        if not self._tensors.needs_assembly:
            return dataset
        return dataset.map(tf.autograph.experimental.do_not_convert(self._tensors.element))

    def _require_dataset(self, dataset: Any) -> None:
        """Check that the user's `create_dataset` returned what the mode needs."""
        subject = f"create_dataset of {self._loaded.label}"
        if not overrides_method(type(self._spec), "create_dataset"):
            subject = f"{self._loaded.label} has no create_dataset (input_fn), so the data"
        if not isinstance(dataset, tf.data.Dataset):
            raise UserCodeError(
                f"{subject} must return a tf.data.Dataset.",
                received=type(dataset).__name__,
                hint="Return the data set at the end of the function.",
            )
        element = dataset.element_spec
        if self._mode is Mode.PREDICTION:
            if isinstance(element, tuple) and len(element) > MAX_PARTS:
                raise UserCodeError(
                    f"{subject} must return features in mode prediction.",
                    received=f"elements of {len(element)} parts",
                    hint="A tuple means (features, labels, weights), as in Keras. Wrap features"
                    " that are a tuple in another tuple: (features,).",
                )
            if (change := _change_of_order(dataset)) is not None:
                raise UserCodeError(
                    f"{subject} must keep the order of the records in mode prediction, because each"
                    " prediction gets the id of the record at its place.",
                    received=change,
                    hint="Write `if mode == Mode.TRAINING:` before it.",
                )
        elif not isinstance(element, tuple) or len(element) not in (2, MAX_PARTS):
            raise wrong_parts(
                subject,
                self._mode,
                received=str(element),
                hint="Return a tuple of two or three parts.",
            )


def _change_of_order(dataset: tf.data.Dataset) -> str | None:
    """Return what in a pipeline may change the order of its elements; None if nothing does."""
    if "Shuffle" in type(dataset).__name__:
        return "dataset.shuffle(...)"
    if getattr(dataset, "_deterministic", None) == "false":
        return "deterministic=False"
    # Options of any part hold for the whole pipeline. `options()` would warn within a graph.
    options = getattr(dataset, "_options_attr", None)
    if options is not None and options.deterministic is False:
        return "options.deterministic = False"
    return next(filter(None, map(_change_of_order, dataset._inputs())), None)


@contextlib.contextmanager
def all_examples(
    source: RecordSource, plan: DataPlan, loaded: LoadedSpec
) -> Iterator[tf.data.Dataset]:
    """Open the training examples of one epoch in batches: features, labels, and weights if any.

    Raises:
        DataError: A record could not be read; replaces the error that TensorFlow raises for it.
        UserCodeError: As for `KerasBatches`.
    """
    failures: list[DataError] = []

    def open_batches() -> KerasBatches:
        return KerasBatches(source, plan, loaded, Mode.TRAINING, prefetch=1)

    def epoch() -> Iterator[tuple[Any, ...]]:
        # New batches for each iteration, because two may run at the same time, as in `zip`.
        batches = open_batches()
        try:
            for batch in batches.epoch():
                yield batch.examples
        except DataError as e:
            failures.append(e)
            raise

    try:
        yield tf.data.Dataset.from_generator(epoch, output_signature=open_batches().element_spec)
    except UserCodeError:  # Raised from TensorFlow's error in the user's code.
        if not failures:
            raise
        raise failures[0] from failures[0].__cause__


def pad_to_lengths(dataset: tf.data.Dataset, padding: Padding) -> tf.data.Dataset:
    """Pad each axis of varying size to the smallest of `padding.lengths` that fits."""
    if not padding.lengths:
        return dataset
    spec = dataset.element_spec
    values = _padding_values(spec, padding.values)

    def pad(*parts: Any) -> Any:
        batch = parts if isinstance(spec, tuple) else parts[0]
        tensors = [
            _pad_tensor(tensor, value, padding.lengths)
            for tensor, value in zip(tf.nest.flatten(batch), values, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, tensors)

    return dataset.map(tf.autograph.experimental.do_not_convert(pad))


def inline_maps(graph: tf.Graph) -> int:
    """Set the map ops of a graph to run their functions in the thread that requests the element.

    tf.data schedules each op of a mapped function on a thread pool. For a parser of single records
    the scheduling costs more than the parsing (784 floats: 15 us per record with the pool, 6 us
    without). TensorFlow's own datasets avoid this by an attribute of the map op that its Python API
    does not expose. The op keeps the pool if a function has control flow.

    Args:
        graph: The graph in which the user's pipeline was just built.

    Returns:
        The number of map ops that were set.
    """
    maps = [op for op in graph.get_operations() if op.type == _MAP_OP]
    functions = graph.as_graph_def().library.function if maps else []
    if any(node.op in _CONTROL_FLOW for function in functions for node in function.node_def):
        return 0
    for op in maps:
        op._set_attr(_PARALLELISM, attr_value_pb2.AttrValue(b=False))
    return len(maps)


def _is_step(run: tf.Tensor, step: tf.Tensor, records: Any) -> tf.Tensor:
    return step >= 0


def _whole_if_any(records: Any) -> tf.data.Dataset:
    # If the batch grows with the ring, a rank may have no record in a step within an epoch.
    num_elements = tf.minimum(num_examples(records), 1)
    return tf.data.Dataset.from_tensors(records).take(tf.cast(num_elements, tf.int64))


def _summary(error: tf.errors.OpError) -> str:
    """Extract the first line of an error of the pipeline, without its location in the graph."""
    lines = [_GRAPH_LOCATION.sub("", line).strip() for line in error.message.splitlines()]
    return next((line[:500] for line in lines if line), type(error).__name__)


class _RecordTensors:
    """Converts the records of one source, by way of the flat arrays that a graph's op returns."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout

    @property
    def types(self) -> list[tf.DType]:
        """The types of the arrays that `arrays` returns."""
        if self._layout is None:
            return [tf.string]
        types = []
        for column in self._layout.columns:
            types.append(tf.string if column.dtype == BYTES else tf.dtypes.as_dtype(column.dtype))
            types += [tf.int64] * column.is_ragged
        return types

    @property
    def needs_assembly(self) -> bool:
        """Whether `element` must be mapped over the records to build their tensors."""
        return self._layout is not None and self._layout.needs_assembly

    def arrays(self, records: Records | None) -> list[Any]:
        """Convert records to flat arrays; None gives empty arrays."""
        if self._layout is None:
            return [np.array(records or [], dtype=object)]
        arrays: list[Any] = []
        for values in empty(self._layout) if records is None else records:
            arrays += [values.values, values.lengths] if isinstance(values, Ragged) else [values]
        return arrays

    def records(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Pack the tensors of `arrays` into the structure of a record, with one tensor a column."""
        if self._layout is None:
            return tf.ensure_shape(tensors[0], (None,))
        remaining = iter(tensors)
        return self._layout.pack([_tensor(column, remaining) for column in self._layout.columns])

    def element(self, *record: Any) -> Any:
        """Build one record's tensors from its slice of `records`; for `tf.data.Dataset.map`."""
        assert self._layout is not None
        structure = self._layout.structure
        assert structure is not None
        # tf.data unpacks a record that is a tuple into arguments.
        return _assemble(structure, record if isinstance(structure, tuple) else record[0])


def _assemble(structure: Structure, packed: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _assemble(inner, packed[name]) for name, inner in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map(_assemble, structure, packed))
    if structure.is_column:
        return packed
    remaining = iter(packed)
    parts = [_part(part, remaining) for part in structure.parts]
    if structure.kind == "ragged":
        return tf.RaggedTensor.from_nested_row_splits(parts[0], parts[1:], validate=False)
    return tf.SparseTensor(*parts) if structure.kind == "sparse" else parts[0]


def _part(part: Part, tensors: Iterator[tf.Tensor]) -> tf.Tensor:
    values = next(tensors)
    if part.shape_column is None:
        return values
    return tf.ensure_shape(tf.reshape(values, next(tensors)), part.shape)


def _tensor(column: Column, tensors: Any) -> Any:
    if column.is_ragged:
        values = tf.ensure_shape(next(tensors), (None,))
        lengths = tf.ensure_shape(next(tensors), (None,))
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    return tf.ensure_shape(next(tensors), (None, *column.shape))


def _padding_values(spec: Any, configured: Any) -> list[Any]:
    """List the padding value of each tensor.

    Args:
        spec: Specs of a batch.
        configured: One value for all tensors, or a structure like `spec`. None means the default,
            an empty string or 0.
    """
    specs = tf.nest.flatten(spec)
    is_for_all = configured is None or not isinstance(configured, dict | tuple | list)
    values = [configured] * len(specs) if is_for_all else tf.nest.flatten(configured)
    defaults = ("" if tensor_spec.dtype == tf.string else 0 for tensor_spec in specs)
    return [
        default if value is None else value for value, default in zip(values, defaults, strict=True)
    ]


def _pad_tensor(tensor: tf.Tensor, value: Any, lengths: tuple[int, ...]) -> tf.Tensor:
    varies = [axis > 0 and size is None for axis, size in enumerate(tensor.shape)]
    if not any(varies):
        return tensor
    bounds = tf.constant(lengths)
    message = (
        f"An example is longer than the last of lengths={list(lengths)} of edl_horovod.padded."
    )

    def num_missing(size: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less_equal(size, bounds[-1], message)]):
            return bounds[tf.searchsorted(bounds, [size])[0]] - size

    sizes = zip(varies, tf.unstack(tf.shape(tensor)), strict=True)
    paddings = [[0, num_missing(size) if is_varying else 0] for is_varying, size in sizes]
    return tf.pad(tensor, paddings, constant_values=tf.convert_to_tensor(value, tensor.dtype))
