"""A framework of the tests does all that Keras and PyTorch do, by what frameworks have in common.

On a ring it is in `tests/parallel/ranks/both/test_another_framework.py`.
"""

import numpy as np
import pytest

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.job import checkpoint_files

ZOO = '''
import numpy as np

from edl_horovod.callbacks import Callback, LearningRateScheduler
from tests.zoo.line import LineSpec


class Full(LineSpec):
    """A line with a momentum and a metric."""

    def create_optimizer(self, lr=0.05):
        return lr, 0.9

    def create_metrics(self, outputs, labels):
        return {"mae": np.abs(outputs - labels)}


class Adapted(LineSpec):
    def adapt(self, examples):
        return float(sum(len(features) for features, labels in examples))

    def create_model(self):
        return np.full((4, 1), self.adapted)


class Halves(Callback):
    """Halves the learning rate after each epoch, and ends the training after the third."""

    def __init__(self):
        self.rates = []

    def on_epoch_end(self, epoch, logs):
        self.rates.append(float(self.optimizer.rate.numpy()))
        self.optimizer.rate.assign(self.rates[-1] / 2)
        self.stop_training = len(self.rates) == 3 and logs["mae"] == logs["mae"]


class Called(Full):
    def create_callbacks(self):
        return [Halves()]


class Scheduled(LineSpec):
    def create_callbacks(self):
        return [LearningRateScheduler(lambda step: 0.1 if step < 5 else 0.0)]


class Meddles(Callback):
    def on_train_batch_end(self, batch, logs):
        self.model.kernel.assign(self.model.kernel.numpy() + 1)


class Meddling(LineSpec):
    def create_callbacks(self):
        return [Meddles()]
'''
FUNCTIONS = """
import numpy as np

from tests.zoo.line import LineSpec


def custom_model(size: int = 4):
    return np.zeros((size, 1))


def feed(records, mode):
    return LineSpec().create_dataset(records, mode)


def loss(labels, outputs):
    return np.mean((outputs - labels) ** 2)


def optimizer(lr=0.1):
    return lr
"""


@pytest.fixture
def run(run, tmp_path):
    """Run a task on 100 records: `run("train", "model_def=models.Full")`; gives its result."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "models.py").write_text(ZOO)
    (tmp_path / "zoo" / "functions.py").write_text(FUNCTIONS)

    train = (f"model_zoo={tmp_path / 'zoo'}", "train.batch_size=20", "train.epochs=6")

    def run_task(task, *settings, output="out", until=0):
        defaults = train if task == "train" else ()
        return run(task, *defaults, *settings, output=output, job=f"{output}.job", until=until)

    return run_task


@pytest.fixture
def kernel(tmp_path):
    """The kernel in an output: `kernel("out")`."""
    return lambda output="out": np.load(tmp_path / output / "kernel.npy")


def test_a_model_is_exported_for_programs_without_its_code(run, kernel, tmp_path):
    reference = pytest.importorskip("onnx.reference")
    run("train", "model_def=models.Full", "train.saved_model=true", "train.onnx=true")
    with np.load(tmp_path / "out" / "saved_model.npz") as exported:
        np.testing.assert_array_equal(exported["kernel"], kernel())
    x = np.arange(8.0).reshape(2, 4)
    program = reference.ReferenceEvaluator(f"{tmp_path}/out/model.onnx")
    np.testing.assert_array_equal(program.run(None, {"features": x})[0], x @ kernel())


def test_a_setting_that_it_does_not_support_is_refused(run):
    with pytest.raises(ConfigError, match=r"train\.compile"):
        run("train", "model_def=models.Full", "train.compile=true")


def test_a_spec_adapts_to_the_examples(run, kernel):
    run("train", "model_def=models.Adapted", "train.learning_rate=0")
    np.testing.assert_array_equal(kernel(), np.full((4, 1), 100.0))


@pytest.mark.parametrize("model", ["Full", "Called"])
def test_a_training_goes_on_from_a_checkpoint_with_the_same_bits(run, kernel, tmp_path, model):
    settings = [f"model_def=models.{model}"]
    run("train", *settings, output="whole")
    run("train", *settings, until=12)
    assert checkpoint_files.steps_in(tmp_path / "out.job" / "checkpoints")[-1] == 12
    run("train", *settings, "resume=must", "overwrite=true")
    np.testing.assert_array_equal(kernel(), kernel("whole"))


def test_a_training_starts_from_weights_in_a_file(run, kernel, tmp_path):
    np.save(tmp_path / "first.npy", np.full((4, 1), 3.0))
    first = f"init_from={tmp_path / 'first.npy'}"
    run("train", "model_def=models.Full", "train.learning_rate=0", first)
    np.testing.assert_array_equal(kernel(), np.full((4, 1), 3.0))


def test_callbacks_change_the_rate_and_end_the_training(run):
    assert run("train", "model_def=models.Called").steps == 3 * 5
    assert run("train", "model_def=models.Called", "resume=must", "overwrite=true").steps == 15


def test_a_schedule_sets_the_rate_of_each_step(run, kernel):
    run("train", "model_def=models.Scheduled", output="long")
    run("train", "model_def=models.Scheduled", "train.epochs=1")
    np.testing.assert_array_equal(kernel("long"), kernel())


def test_a_hook_of_a_step_changes_nothing(run):
    run("train", "model_def=models.Meddling")
    with pytest.raises(UserCodeError, match="on_train_batch_end"):
        run("train", "model_def=models.Meddling", "callbacks.per_step=true", output="other")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("train.accumulate_steps=3", False),
        ("train.clip_norm=100", False),
        ("train.clip_value=100", False),
        ("train.clip_norm=0.01", True),
        ("train.clip_value=0.01", True),
    ],
)
def test_gradients_are_accumulated_and_clipped(run, kernel, setting, changes):
    run("train", "model_def=models.Full", output="plain")
    run("train", "model_def=models.Full", setting)
    assert np.allclose(kernel(), kernel("plain"), rtol=1e-9) != changes


def test_metrics_are_means_over_all_examples(run, tmp_path):
    trained = run("train", "model_def=models.Full", "validation_data=numbers:30")
    evaluated = run("evaluate", f"trained_model={tmp_path / 'out'}", output="scores")
    assert set(trained.metrics) == set(evaluated.metrics) == {"loss", "mae"}
    assert 0 < evaluated.metrics["mae"] < 1


def test_a_model_may_be_functions_without_a_spec(run, kernel):
    run("train", "model_def=functions", output="functions")
    assert kernel("functions").shape == (4, 1)
    assert np.abs(kernel("functions") - 0.5).max() < 0.1
