"""A training in this process, as the only rank of its ring, without a launcher."""

import contextlib
from pathlib import Path

import pytest

from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Dismissed
from edl_horovod.tasks import warm as prepare
from tests.alone import ME, Alone
from tests.jobs import config_of
from tests.records import write_records
from tests.watched_framework import watch

ZOO = Path(__file__).parents[2] / "zoo"


class Training:
    """What a training did, step by step."""

    def __init__(self, work, step):
        self.work, self.step = work, step
        self.losses = {}
        self.result = None

    def weights(self):
        return [variable.numpy() for variable in self.work.state.variables.values()]

    def model_weights(self):
        return [variable.numpy() for variable in self.step.model_variables.values()]


@pytest.fixture
def watched(monkeypatch):
    """Keras, whose trainings a test may see and change."""
    pytest.importorskip("keras")
    from edl_horovod.frameworks.keras.framework import FRAMEWORK

    return watch("keras", FRAMEWORK, monkeypatch)


@pytest.fixture
def use(watched):
    """Let the model's file give these callbacks, new ones for each training."""

    def use_them(make):
        watched.methods["create_callbacks"] = make

    return use_them


@pytest.fixture
def train(tmp_path, monkeypatch, watched):
    """Train alone: `train("train.epochs=2", until=7, job="a")`."""
    import keras

    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    data = write_records(tmp_path / "data", 100)

    def train_it(*overrides, until=0, job="job"):
        keras.backend.clear_session()
        overridden = {text.partition("=")[0] for text in overrides}
        defaults = {
            "data": data,
            "model_zoo": str(ZOO),
            "model_def": "tiny",
            "train.batch_size": 24,
            "output": str(tmp_path / f"{job}-out"),
            "job_dir": str(tmp_path / job),
            "data_plan.lanes": 6,
            "data_plan.shuffle_window": 16,
            "overwrite": "true",
        }
        settings = [f"{key}={value}" for key, value in defaults.items() if key not in overridden]
        config = config_of("train", [*settings, *overrides])
        Path(config.job_dir).mkdir(exist_ok=True)
        path = JobDir.of(config).events
        with EventLog(path, "test") as log, prepare.make_warm(config, log, ME) as work:
            training = Training(work, watched.made_step)

            def after_step(sums):
                training.losses[work.state.step + 1] = sums.loss

            # A checkpoint is written to its end: these steps are faster than any disk.
            watched.before_step, watched.after_step = lambda _: work.close(), after_step
            with contextlib.suppress(Dismissed):
                training.result = loop.run(work, Alone(until), log)
        return training

    return train_it
