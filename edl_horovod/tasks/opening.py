"""What the tasks open while they get warm: data, and a trained model."""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import evaluation_batch, num_lanes, training_batch
from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.files.cache import one_builder
from edl_horovod.files.whole_file import write_text
from edl_horovod.frameworks.base import Framework, Model
from edl_horovod.frameworks.batches import StepBatches
from edl_horovod.frameworks.values import Batch
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, LogEvent
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.trained_model_file import ADAPTED_FILE, read_adapted
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.as_trained import as_trained
from edl_horovod.records.columns import Ragged
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.layout import Column
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import ElasticDLSpec, Mode
from edl_horovod.tasks.local_rounds import plan_of_local_steps

log = logging.getLogger(__name__)

_ADAPT_BATCH = 256
"""Size of the batches of examples that a spec's `adapt` gets."""


@dataclass(frozen=True)
class OpenData:
    """An opened data set: its batches, its plan and its first batch."""

    batches: StepBatches
    plan: DataPlan
    """The plan of the job's steps; local steps of a round have a plan of their own."""
    first: Batch | None
    """The examples of the first records; None if the user's code drops all of these."""
    columns: tuple[Column, ...]
    """The columns of the records, as the model gets them; empty for records without columns."""
    make_batches: Callable[[], StepBatches]
    """Makes more batches like `batches`, which read at the same time."""


@dataclass(frozen=True)
class Trained:
    """A trained model with its weights, and the data for it."""

    loaded: LoadedSpec
    model: Model
    data: OpenData


def model_to_begin_with(config: JobConfig) -> trained_model.TrainedModelFiles | None:
    """The trained model of `init_from`; None if that is a file of weights, or is not set.

    Raises:
        ConfigError: It is not a trained model.
        DataError: It is damaged.
    """
    is_model = bool(config.init_from) and not os.path.isfile(config.init_from)
    return trained_model.read(Path(config.init_from)) if is_model else None


class Opening:
    """Opens data and trained models for one job while it gets warm."""

    def __init__(
        self, config: JobConfig, framework: Framework, events: EventLog, stack: contextlib.ExitStack
    ) -> None:
        """Prepare; the stack closes what is opened."""
        self._config, self._framework = config, framework
        self._events, self._stack = events, stack

    def data(
        self,
        pattern: str,
        loaded: LoadedSpec,
        mode: Mode,
        *,
        trained_columns: Sequence[Column] = (),
    ) -> OpenData:
        """Open the job's `data` or `validation_data` (`pattern`), and try its first records.

        The progress of a long indexing is written to the job's events. A training that begins with
        a trained model (`init_from`) takes its vocabulary (`adapted`) and column types.

        Args:
            pattern: The value of `data` or of `validation_data`.
            loaded: The user's spec; its attribute `adapted` is set.
            mode: What the examples are for; decides the order and the size of the batches.
            trained_columns: The columns that the model was trained with. Dates, times and durations
                are read in their units, and classes have their numbers.

        Raises:
            DataError: A file is damaged, or the records do not fit the model.
            UserCodeError: `create_dataset` raised, or returned something unusable.
        """
        config, framework = self._config, self._framework
        settings, job_dir = config.data_plan, JobDir.of(config)
        key = "data" if pattern == config.data else "validation_data"
        is_training = mode is Mode.TRAINING
        source = self._stack.enter_context(
            open_source(pattern, settings, folders=job_dir.folders, tell=self._tell)
        )
        log.info("%s: %s", key, source.describe())
        initial_model = model_to_begin_with(config) if is_training else None
        if initial_model is not None:
            trained_columns = initial_model.columns
        source = as_trained(
            trained_columns,
            source,
            data=f"{key}={pattern}",
            # What is predicted need not lie in folders with the names of classes.
            needs_classes=mode is not Mode.PREDICTION,
        )

        def examples() -> contextlib.AbstractContextManager[Any]:
            batch = {"global_batch": _ADAPT_BATCH}
            in_order = plan_of(source, settings, num_lanes=1, is_training=False, **batch)
            return framework.examples(source, in_order, loaded)

        if initial_model is not None:
            # Its weights belong to its vocabulary, so the new data must not change that.
            loaded.spec.adapted = read_adapted(initial_model.path)
        elif is_training:
            if config.federated.rounds:
                _require_no_adapt(loaded)
            with _naming(key, pattern):
                adapt(loaded, source, job_dir.adapted, self._tell, examples=examples)
        batch = (
            training_batch(config) if is_training else {"global_batch": evaluation_batch(config)}
        )
        lanes = num_lanes(config)
        plan = plan_of(source, settings, num_lanes=lanes, is_training=is_training, **batch)
        ahead = {"prefetch": settings.prefetch_steps, "processes": settings.processes}
        of_batches = plan
        if is_training and config.train.local.steps:
            of_batches = plan_of_local_steps(plan, config.train.local.steps)
        make_batches = functools.partial(
            framework.batches, source, of_batches, loaded, mode, **ahead
        )
        batches = make_batches()
        self._stack.callback(batches.close)
        with _naming(key, pattern):
            first = batches.try_first()
        columns = source.layout.columns if source.layout is not None else ()
        return OpenData(batches, plan, first, columns, make_batches)

    def trained(self, mode: Mode) -> Trained:
        """Load the job's trained model, and open the data for it.

        The data is opened between the spec and the weights: the spec decodes the records, and the
        model is built for the examples that come of it. Errors of both parts name the package
        versions that the model was trained with.

        Raises:
            EdlError: The settings, the trained model, the user's code or the data are at fault.
        """
        config, framework = self._config, self._framework
        files = trained_model.read(Path(config.trained_model))
        with trained_model.naming_versions(files):
            loaded = trained_model.load_spec(
                files, plain_models=framework.plain_models, trusts_changes=config.trusts("changed")
            )
        data = self.data(config.data, loaded, mode, trained_columns=files.columns)
        with trained_model.naming_versions(files):
            model = framework.model(loaded, data.batches.element_spec)
            trained_model.restore_weights(files, model.weights)
        return Trained(loaded, model, data)

    def _tell(self, message: str) -> None:
        self._events.write(LogEvent(message=message))


@contextlib.contextmanager
def _naming(key: str, pattern: str) -> Iterator[None]:
    """Add the setting that names the data to errors about the data."""
    try:
        yield
    except DataError as e:
        raise e.with_received({key: pattern}) from e


def _require_no_adapt(loaded: LoadedSpec) -> None:
    """Refuse to begin a federated training with what only a party's own records say.

    Raises:
        ConfigError: The spec defines `adapt`.
    """
    if type(loaded.spec).adapt is not ElasticDLSpec.adapt:
        raise ConfigError(
            "In a federated training each party would adapt the model to its own data, so the"
            " models of the parties would not fit together.",
            received=f"adapt of {loaded.label}",
            hint="Set init_from to a trained model of this spec, the same at all parties: its"
            " adapted value is taken. Or leave adapt out of the spec.",
        )


def adapt(
    loaded: LoadedSpec,
    source: RecordSource,
    folder: Path,
    tell: Callable[[str], None],
    *,
    examples: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Set a spec's `adapted` to what its `adapt` returns for all records of the training data.

    Only one process of the job calls `adapt`; the others wait, and read the value from a file.

    Args:
        loaded: The spec. Nothing is done if it does not define `adapt`.
        source: The job's training data.
        folder: A folder of the job, where the value is cached for all ranks and for a resumed job.
        tell: Called with messages for the user.
        examples: Opens the examples, for an `adapt` with a parameter `examples`.

    Raises:
        DataError: A record cannot be read.
        UserCodeError: `adapt` raised something, or returned a value that JSON cannot represent.
        OSError: The folder cannot be written.
    """
    if type(loaded.spec).adapt is ElasticDLSpec.adapt:
        return
    path = folder / ADAPTED_FILE
    lock = folder / f"{ADAPTED_FILE}.lock"
    with one_builder([lock], tell, doing="looks at all records", gives_up=False):
        value = _cached_value(path, source.fingerprint)
        if value is None:
            value = _call_adapt(loaded, source, tell, examples)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({"fingerprint": source.fingerprint, "value": value}))
    loaded.spec.adapted = value


def _cached_value(path: Path, fingerprint: str) -> Any:
    """The cached value for data with this fingerprint; None if there is none."""
    try:
        saved = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return saved["value"] if saved.get("fingerprint") == fingerprint else None


def _call_adapt(
    loaded: LoadedSpec,
    source: RecordSource,
    tell: Callable[[str], None],
    examples: Callable[[], AbstractContextManager[Any]],
) -> Any:
    doing = f"adapt of {loaded.label}"
    available = {"records": _records(source), "blocks": _blocks(source), "tell": tell}
    with contextlib.ExitStack() as stack:
        if "examples" in declared(loaded.spec.adapt).names:
            available["examples"] = stack.enter_context(examples())
        with user_code(doing, root=loaded.zoo):
            value = call_declared(loaded.spec.adapt, available)
    try:
        # A tuple becomes a list, for instance: as the other ranks read it from the file.
        return json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise UserCodeError(
            f"{doing} must return a value that JSON can represent: {error}.",
            received=type(value).__name__,
            hint="Return dicts, lists, strings, numbers, or NumPy arrays of these.",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not one of its types")


def _blocks(source: RecordSource) -> Iterator[dict[str, Any]] | None:
    """The columns of some thousand records at a time; None where there are no columns by name."""
    layout = source.layout
    if layout is None or layout.kind != "dict" or layout.structure is not None:
        return None

    def values_of(column: Column, values: Any) -> Any:
        if not column.time_type.startswith("datetime64"):
            return values
        if isinstance(values, Ragged):
            assert isinstance(values.values, np.ndarray)
            return Ragged(values.values.astype(column.time_type), values.ends)
        return values.astype(column.time_type)

    return (
        {
            column.name: values_of(column, values)
            for column, values in zip(layout.columns, block, strict=True)
        }
        for block in _read_blocks(source)
    )


def _records(source: RecordSource) -> Iterator[Any]:
    layout = source.layout
    for block in _read_blocks(source):
        if layout is None:
            yield from block
        else:
            yield from map(layout.pack, zip(*map(_one_by_one, block), strict=True))


def _read_blocks(source: RecordSource) -> Iterator[Any]:
    for start, count in zip(source.block_starts, source.block_counts, strict=True):
        yield source.read(range(int(start), int(start + count)))


def _one_by_one(values: Any) -> Iterator[Any]:
    if isinstance(values, Ragged):
        return iter(np.split(np.asarray(values.values), values.ends[:-1]))
    return iter(values)
