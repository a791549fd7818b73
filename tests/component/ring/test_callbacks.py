"""Keras callbacks of a training: told the ring's numbers, and alive where it goes on."""

import csv

import numpy as np
import pytest

from edl_horovod.callbacks import LearningRateScheduler, MaxSteps
from edl_horovod.errors import UserCodeError
from tests.arrays import assert_close
from tests.later import LATER

if LATER:
    import keras

EPOCHS = "train.epochs=4"
STEPS_PER_EPOCH = 5


if LATER:

    class Recorder(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.told = []
            self._rates = []

        def on_train_begin(self, logs=None):
            self.told.append("begin")

        def on_epoch_begin(self, epoch, logs=None):
            self.told.append(f"> {epoch}")

        def on_epoch_end(self, epoch, logs=None):
            self.told.append(f"< {epoch}")
            self._rates.append(float(self.model.optimizer.learning_rate))
            self.logs = logs

        def on_train_end(self, logs=None):
            self.told.append("end")


@pytest.mark.long
def test_they_are_told_of_each_epoch_once_with_the_means_of_all_steps(train, use, tmp_path):
    recorder = Recorder()
    use(lambda: [recorder])
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    training = train("train.epochs=2", held_out)
    assert recorder.told == ["begin", "> 0", "< 0", "> 1", "< 1", "end"]
    assert set(recorder.logs) == {"loss", "absolute_error", "val_loss", "val_absolute_error"}
    counts = [24, 24, 24, 24, 4]
    mean = np.average([training.losses[step] for step in range(6, 11)], weights=counts)
    np.testing.assert_allclose(recorder.logs["loss"], mean, rtol=1e-6)
    assert recorder.logs["val_loss"] == training.result.metrics["loss"]


@pytest.mark.long
def test_a_training_that_goes_on_has_the_callbacks_it_had(train, use, tmp_path):
    recorders, loggers = [], []

    def make():
        recorders.append(Recorder())
        loggers.append(keras.callbacks.CSVLogger(str(tmp_path / f"{len(recorders) < 2}.csv")))
        return [
            keras.callbacks.LearningRateScheduler(
                lambda epoch, rate: rate * 0.5 if epoch else rate
            ),
            keras.callbacks.ReduceLROnPlateau(
                monitor="loss", patience=2, factor=0.1, min_delta=100.0, min_lr=1e-6
            ),
            loggers[-1],
            recorders[-1],
        ]

    use(make)
    whole = train("train.epochs=6", job="whole")
    first = train("train.epochs=6", until=12)
    loggers[-1].csv_file.close()  # As the end of its process does.
    losses = {**first.losses, **train("train.epochs=6", "resume=must").losses}
    np.testing.assert_allclose(list(losses.values()), list(whole.losses.values()), rtol=1e-5)
    assert recorders[0]._rates[0] > recorders[0]._rates[-1] > 0
    assert recorders[2]._rates == recorders[0]._rates
    assert recorders[2].told == [*recorders[0].told[:-1], "end"]
    for name in (True, False):
        rows = csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines())
        assert [row["epoch"] for row in rows] == list("012345")


@pytest.mark.long
def test_one_of_them_can_end_the_training(train, use):
    use(lambda: [keras.callbacks.EarlyStopping(monitor="loss", min_delta=100.0, patience=1)])
    assert max(train(EPOCHS).losses) == 2 * STEPS_PER_EPOCH
    assert train(EPOCHS, "resume=must").losses == {}


@pytest.mark.long
def test_a_rate_by_step_and_a_last_step_hold_on_every_rank_alike(train, use):
    seen = []

    def schedule(step):
        seen.append(step)
        return 0.1 if step < 3 else 0.0

    use(lambda: [LearningRateScheduler(schedule), MaxSteps(7), MaxSteps(100)])
    training = train(EPOCHS)
    assert list(training.losses) == [1, 2, 3, 4, 5, 6, 7]
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert train(EPOCHS, "resume=must").losses == {}
    fast = train("train.max_steps=3", job="fast")
    # Nothing moves at a rate of 0.
    assert_close(training.model_weights(), fast.model_weights(), rtol=1e-6)


@pytest.mark.long
def test_the_model_is_written_without_its_optimizer(train, use, tmp_path):
    use(lambda: [Recorder()])
    train("train.epochs=1")
    model = keras.models.load_model(tmp_path / "job-out" / "model.keras")
    assert getattr(model, "optimizer", None) is None


if LATER:

    class Raises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyError("no such log")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "a callback", "Received: str"),
        (lambda: MaxSteps(0), "max_steps=0"),
        (lambda: Raises(), "on_epoch_end of Raises failed"),
        (lambda: LearningRateScheduler(lambda step: None), r"LearningRateScheduler .* 0\b"),
        (
            lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print),
            r"LambdaCallback .*per_step",
        ),
    ],
)
def test_what_cannot_work_on_a_ring_is_refused(train, use, make, message):
    use(lambda: [make()])
    with pytest.raises(UserCodeError, match=message):
        train("train.epochs=1")
