"""Keras' own callbacks, each tried: as in `fit`, or refused with what to write instead."""

import csv
import glob

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.records.reader import Reader
from tests.arrays import assert_close
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

PER_STEP = "callbacks.per_step=true"
STEPS_PER_EPOCH = 5
EPOCHS = 6
IN_ORDER = ("data_plan.shuffle=false", "data_plan.lanes=1", f"train.epochs={EPOCHS}")


if LATER:

    class Begins(keras.callbacks.Callback):
        """Remembers the weights that the training begins with."""

        def on_train_begin(self, logs=None):
            self.weights = self.model.get_weights()


def by_fit(tmp_path, weights, callbacks):
    """The weights after `fit` on the same records in the same order, and its epochs."""
    spec = {
        "x": tf.io.FixedLenFeature([4], tf.float32),
        "y": tf.io.FixedLenFeature([1], tf.float32),
    }
    with Reader.open(str(tmp_path / "data")) as reader:
        columns = tf.io.parse_example(list(reader), spec)
    x = keras.Input(shape=(4,), name="x")
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(x)
    model = keras.Model({"x": x}, keras.layers.Dense(1)(hidden))
    model.set_weights(weights)
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    history = model.fit(
        {"x": columns["x"]},
        columns["y"],
        batch_size=24,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return model.get_weights(), history.epoch


def halved(epoch, rate):
    return rate * 0.5 if epoch else rate


CASES = {
    "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(halved),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(
        monitor="loss", patience=1, factor=0.1, min_delta=0.2
    ),
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
        monitor="loss", patience=1, min_delta=0.2
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_it_does_what_it_does_in_fit(train, use, tmp_path, name):
    begins = Begins()
    use(lambda: [begins, CASES[name]()])
    training = train(*IN_ORDER)
    weights, epochs = by_fit(tmp_path, begins.weights, [CASES[name]()])
    assert len(training.losses) == STEPS_PER_EPOCH * len(epochs)
    assert_close(training.model_weights(), weights, rtol=1e-5, atol=1e-5)
    if name == "EarlyStopping":
        assert len(epochs) < EPOCHS


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_it_does_so_after_an_end_in_the_midst_of_an_epoch(train, use, tmp_path, name):
    begins = Begins()
    use(lambda: [begins, CASES[name]()])
    train(*IN_ORDER, "train.max_steps=12")
    first_weights = begins.weights
    longer = train(*IN_ORDER, "resume=must")
    weights, epochs = by_fit(tmp_path, first_weights, [CASES[name]()])
    assert list(longer.losses) == list(range(13, STEPS_PER_EPOCH * len(epochs) + 1))
    assert_close(longer.model_weights(), weights, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_csv_logger_writes_what_it_writes_in_fit(train, use, tmp_path):
    begins = Begins()
    use(lambda: [begins, keras.callbacks.CSVLogger(str(tmp_path / "ours.csv"))])
    train(*IN_ORDER)
    by_fit(tmp_path, begins.weights, [keras.callbacks.CSVLogger(str(tmp_path / "theirs.csv"))])
    rows, rows_of_fit = (
        list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        for name in ("ours", "theirs")
    )
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in rows_of_fit]
    losses, losses_of_fit = ([float(row["loss"]) for row in table] for table in (rows, rows_of_fit))
    np.testing.assert_allclose(losses, losses_of_fit, rtol=1e-4)


@pytest.mark.long
def test_model_checkpoint_saves_each_epoch_or_the_best(train, use, tmp_path):
    use(
        lambda: [
            keras.callbacks.ModelCheckpoint(str(tmp_path / "all-{epoch}.keras")),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "best.weights.h5"),
                monitor="loss",
                save_best_only=True,
                save_weights_only=True,
            ),
        ]
    )
    training = train("train.epochs=2")
    assert (tmp_path / "best.weights.h5").exists()
    model = keras.models.load_model(tmp_path / "all-2.keras", compile=False)
    assert_close(training.model_weights(), model.get_weights(), rtol=0)


@pytest.mark.long
def test_model_checkpoint_by_steps_needs_per_step(train, use, tmp_path):
    path, how = str(tmp_path / "{epoch}-{batch}.weights.h5"), {"save_weights_only": True}
    use(lambda: [keras.callbacks.ModelCheckpoint(path, save_freq=2, **how)])
    with pytest.raises(UserCodeError, match=r"ModelCheckpoint .*per_step"):
        train("train.epochs=1")
    train("train.epochs=1", PER_STEP)
    written = sorted(path.name for path in tmp_path.glob("*.weights.h5"))
    assert written == ["1-2.weights.h5", "1-4.weights.h5"]


def tags(folder):
    steps = {}
    for file in glob.glob(f"{folder}/**/events*", recursive=True):
        for event in tf.compat.v1.train.summary_iterator(file):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


@pytest.mark.long
def test_tensorboard_writes_each_epoch(train, use, tmp_path):
    use(lambda: [keras.callbacks.TensorBoard(str(tmp_path / "board"), histogram_freq=1)])
    train("train.epochs=2", f"validation_data={tmp_path}/data/part-0.recordio")
    steps = tags(tmp_path / "board")
    assert steps["epoch_loss"] == [0, 1, 0, 1]  # Of training, and of validation.
    assert steps["epoch_learning_rate"] == [0, 1]
    assert any("kernel" in tag for tag in steps)


@pytest.mark.long
def test_tensorboard_writes_steps_with_per_step(train, use, tmp_path):
    how = {"update_freq": 1, "write_steps_per_second": True}
    use(lambda: [keras.callbacks.TensorBoard(str(tmp_path / "board"), **how)])
    with pytest.raises(UserCodeError, match=r"TensorBoard .*per_step"):
        train("train.epochs=1")
    train("train.epochs=1", PER_STEP)
    steps = tags(tmp_path / "board")
    assert steps["batch_loss"] == [1, 2, 3, 4, 5]
    assert steps["batch_steps_per_second"] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_terminate_on_nan_needs_nothing(train, use):
    use(lambda: [keras.callbacks.TerminateOnNaN()])
    assert train("train.epochs=1").result.steps == STEPS_PER_EPOCH


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: keras.callbacks.BackupAndRestore("b"), "resume=auto"),
        (
            lambda: keras.callbacks.EarlyStopping(restore_best_weights=True),
            r"train\.early_stopping\.restore_best=true",
        ),
        (lambda: keras.callbacks.SwapEMAWeights(), "use_ema"),
    ],
)
def test_what_would_be_another_training_is_refused_with_what_to_write(train, use, make, instead):
    use(lambda: [make()])
    with pytest.raises(UserCodeError, match=instead):
        train("train.epochs=1")


def test_a_hook_of_evaluations_is_refused(train, use):
    class Watches(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            raise AssertionError("called")

    use(lambda: [Watches()])
    with pytest.raises(UserCodeError, match=r"Watches .*_end.*val_"):
        train("train.epochs=1")
