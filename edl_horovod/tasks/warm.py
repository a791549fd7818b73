"""From a job's config to its work, warm: everything slow happens here, outside any ring (D9)."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig, TrainConfig
from edl_horovod.errors import DataError
from edl_horovod.frameworks.keras.batches import Batch, KerasBatches
from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.keras.gradients import GradientOptions
from edl_horovod.frameworks.keras.model import build_model
from edl_horovod.frameworks.keras.step import KerasTrainer
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.models import zoo_files
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.ledger import open_ledger
from edl_horovod.ring.loop import Work
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import EvaluateWork, Evaluator
from edl_horovod.tasks.predict import PredictWork
from edl_horovod.tasks.train import TrainWork

__all__ = ["make_warm"]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def make_warm(config: JobConfig, events: EventLog, identity: WorkerIdentity) -> Iterator[Work]:
    """Open the data, load and build the model, trace its steps.

    Args:
        config: The job.
        events: Handed to the work.
        identity: Of this worker.

    Raises:
        EdlError: Of the kind that fits: config, user code, data.
    """
    _take_device(identity.slot)
    keras.utils.set_random_seed(config.data_plan.seed)
    with contextlib.ExitStack() as stack:
        make = {"train": _train, "evaluate": _evaluate, "predict": _predict}[config.task]
        work = make(config, events, identity, stack)
        log.info("warm")
        yield work


def _train(
    config: JobConfig, events: EventLog, identity: WorkerIdentity, stack: contextlib.ExitStack
) -> Work:
    context = {"worker_id": str(identity.slot), "master_ip": identity.coordinator_host}
    # Only here: a trained model is evaluated and predicted with in float32.
    keras.config.set_dtype_policy(config.train.precision)
    loaded = load_spec(
        config.model_zoo,
        config.model_def,
        params=config.params,
        context=context,
        overrides=Overrides.of(config),
    )
    zoo_files.sources(loaded.zoo)  # What the trained model cannot carry is told before training.
    stream, plan, first = _open(config, config.data, loaded, Mode.TRAINING, stack)
    trainer = KerasTrainer(
        loaded,
        stream.element_spec,
        learning_rate=config.train.learning_rate,
        gradients=_gradient_options(config.train),
    )
    if first is not None:
        trainer.rehearse(first)
    evaluator = None
    if config.validation_data:
        held_out, held_out_plan, _ = _open(
            config, config.validation_data, loaded, Mode.EVALUATION, stack
        )
        evaluator = Evaluator(loaded, trainer.model, held_out, held_out_plan, KerasCollectives())
    if config.init_from:
        files = trained_model.read(Path(config.init_from))
        with trained_model.versions_told(files):
            trained_model.restore_weights(files, trainer.model)
    ledger = None
    if config.debug.ledger:
        ledger = open_ledger(JobDir.of(config).ledger, identity, KerasCollectives())
        stack.callback(ledger.close)
    work = TrainWork(
        config,
        loaded,
        stream=stream,
        plan=plan,
        trainer=trainer,
        evaluator=evaluator,
        collectives=KerasCollectives(),
        events=events,
        ledger=ledger,
    )
    stack.callback(work.close)
    # A newcomer reads it while the others train; what they have done since, they give it.
    work.state.recover()
    return work


def _evaluate(
    config: JobConfig, events: EventLog, identity: WorkerIdentity, stack: contextlib.ExitStack
) -> Work:
    trained = _open_trained(config, Mode.EVALUATION, stack)
    evaluator = Evaluator(
        trained.loaded, trained.model, trained.stream, trained.plan, KerasCollectives()
    )
    return EvaluateWork(config, evaluator, trained.plan, KerasCollectives(), events)


def _predict(
    config: JobConfig, events: EventLog, identity: WorkerIdentity, stack: contextlib.ExitStack
) -> Work:
    trained = _open_trained(config, Mode.PREDICTION, stack)
    return PredictWork(
        config,
        trained.loaded,
        trained.model,
        stream=trained.stream,
        plan=trained.plan,
        collectives=KerasCollectives(),
        events=events,
    )


@dataclass(frozen=True)
class _Trained:
    """A trained model with its weights, and the data for it."""

    loaded: LoadedSpec
    model: keras.Model
    stream: KerasBatches
    plan: DataPlan


def _open_trained(config: JobConfig, mode: Mode, stack: contextlib.ExitStack) -> _Trained:
    files = trained_model.read(Path(config.trained_model))
    with trained_model.versions_told(files):
        loaded = trained_model.load_spec(files, trusts_changes=config.trusts("changed"))
    stream, plan, _ = _open(config, config.data, loaded, mode, stack)
    with trained_model.versions_told(files):
        model = build_model(loaded, stream.element_spec[0])
        trained_model.restore_weights(files, model)
    return _Trained(loaded, model, stream, plan)


def _open(
    config: JobConfig, pattern: str, loaded: LoadedSpec, mode: Mode, stack: contextlib.ExitStack
) -> tuple[KerasBatches, DataPlan, Batch | None]:
    key = "data" if pattern == config.data else "validation_data"
    folder = JobDir.of(config).index
    source = stack.enter_context(open_source(pattern, config.data_plan, folder=folder))
    log.info("%s: %s", key, source.describe())
    plan = plan_of(
        source,
        config.data_plan,
        global_batch=config.train.batch_size,
        is_training=mode is Mode.TRAINING,
    )
    stream = KerasBatches(source, plan, loaded, mode, prefetch=config.data_plan.prefetch_steps)
    try:
        first = stream.try_first()
    except DataError as e:
        raise DataError(f"{e} Received: {key}={pattern!r}.") from e
    return stream, plan, first


def _gradient_options(config: TrainConfig) -> GradientOptions:
    return GradientOptions(
        clip_norm=config.clip_norm,
        clip_value=config.clip_value,
        num_parts=config.accumulate_steps,
        scales_loss=config.precision == "mixed_float16",
    )


def _take_device(slot: int) -> None:
    """One GPU for each local rank, its memory taken as it is needed. Not tried: no GPU at hand."""
    devices = tf.config.list_physical_devices("GPU")
    if devices:
        device = devices[slot % len(devices)]
        tf.config.set_visible_devices(device, "GPU")
        tf.config.experimental.set_memory_growth(device, True)
