"""SavedModels of Keras 2, and its other files, become Keras 3 models."""

import types

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import LoadedSpec
from tests.later import LATER

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.file_models import spec_of, summarize
    from edl_horovod.frameworks.keras.step import KerasStep
    from tests.keras_files import FROM_FILE, close, file_model, made, predicted

    tf_keras = pytest.importorskip("tf_keras")  # Keras 2, which `make setup` installs for tests.
    layers = tf_keras.layers

X = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype(np.float32)


def pictures():
    return tf_keras.Sequential(
        [
            layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 2)),
            layers.BatchNormalization(),
            layers.SeparableConv2D(4, 1),
            layers.LeakyReLU(0.2),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="hard_sigmoid"),
        ]
    )


def branches():
    inner = tf_keras.Sequential([layers.Dense(4, activation="tanh", input_shape=(64, 2))])
    start = tf_keras.Input((8, 8, 2))
    rows = layers.Reshape((64, 2))(start)
    read = layers.Bidirectional(layers.LSTM(3))(rows)
    mean = layers.GlobalAveragePooling1D()(inner(rows))
    return tf_keras.Model(start, layers.Dense(2)(layers.Concatenate()([read, mean])))


def trained_before():
    """A model whose first layer is a model, as those that were trained before."""
    start = tf_keras.Input((8, 8, 2))
    base = tf_keras.Model(start, layers.Conv2D(4, 3, activation="relu")(start))
    base.trainable = False
    return tf_keras.Sequential([base, layers.Flatten(), layers.Dense(3)])


def varied(model):
    """The model with weights none of which is as it began."""
    random = np.random.default_rng(1)
    model.set_weights(
        [np.abs(random.normal(scale=0.5, size=w.shape)) + 0.1 for w in model.get_weights()]
    )
    model.compile("rmsprop", "mse", metrics=["mae"])
    return model


def assert_predicts(model, original):
    close(predicted(model, X), original(tf.constant(X), training=False).numpy())


@pytest.mark.long
@pytest.mark.parametrize("make", [pictures, branches, trained_before])
def test_sequential_and_functional_models_predict_what_they_did(tmp_path, make):
    original = varied(make())
    original.save(tmp_path / "saved", save_format="tf")
    model = made(file_model(tmp_path / "saved", compile_options=FROM_FILE))
    assert_predicts(model, original)
    assert model.count_params() == original.count_params()


@pytest.mark.long(after=1)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("make", [pictures, branches, trained_before])
def test_the_same_models_as_hdf5(tmp_path, make):
    original = varied(make())
    original.save(tmp_path / "model.h5", save_format="h5")
    model = made(file_model(tmp_path / "model.h5"))
    assert_predicts(model, original)
    assert type(model.optimizer).__name__ == "RMSprop"
    (tmp_path / "model.json").write_text(original.to_json())
    original.save_weights(tmp_path / "weights.h5", save_format="h5")
    files = {"architecture": tmp_path / "model.json", "weights": tmp_path / "weights.h5"}
    model = made(file_model(**files, compile_options=FROM_FILE))
    assert_predicts(model, original)


def test_an_archive_of_keras_2(tmp_path):
    original = varied(pictures())
    original.save(tmp_path / "model.keras")
    model = made(file_model(tmp_path / "model.keras"))
    assert_predicts(model, original)


def test_how_it_was_compiled_is_read(tmp_path):
    varied(pictures()).save(tmp_path / "saved", save_format="tf")
    assert type(made(file_model(tmp_path / "saved")).optimizer).__name__ == "RMSprop"
    summary = summarize(file_model(tmp_path / "saved"))
    assert summary.kind.startswith("SavedModel of Keras 2")
    assert {layer.kind: layer.num_parameters for layer in summary.layers}["Dense"] == 3 * 36 + 3
    assert (summary.optimizer, summary.loss) == ("RMSprop", "mse")


if LATER:

    class Own(tf_keras.Model):
        def __init__(self, kind=None):
            super().__init__()
            self.flatten = layers.Flatten()
            self.inner = kind() if kind else layers.Dropout(0.0)
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(self.inner(self.flatten(inputs)))


def saved(tmp_path, *kind):
    original = Own(*kind)
    original.compile("sgd", "mse")
    original(X)
    original.save(tmp_path / "saved", save_format="tf")
    return original, file_model(tmp_path / "saved", is_trusted=True, compile_options=FROM_FILE)


def test_a_class_of_its_own_needs_trust(tmp_path):
    saved(tmp_path)
    model = file_model(tmp_path / "saved")
    with pytest.raises(UserCodeError, match=r"Own, .*saved"):
        made(model)
    summary = summarize(model)
    assert {layer.kind: layer.num_parameters for layer in summary.layers}["Dense"] == 2 * 128 + 2
    assert summary.unsafe == ("Own, the program of saved",)


def test_the_program_of_a_saved_model_does_not_run_untrusted(tmp_path):
    marker = tmp_path / "ran.txt"

    class Writing(layers.Layer):
        """What it computes writes a file, as a program of somebody else could."""

        def call(self, inputs):
            with tf.control_dependencies([tf.io.write_file(str(marker), "ran")]):
                return tf.identity(inputs)

    _, files = saved(tmp_path, Writing)
    marker.unlink()  # Keras 2 ran it to write it.
    model = file_model(tmp_path / "saved", compile_options=FROM_FILE)
    summarize(model)
    with pytest.raises(UserCodeError, match=r"program .*saved"):
        made(model)
    assert not marker.exists()
    made(files)(X)
    assert marker.read_text() == "ran"


def test_a_program_of_another_type_of_numbers_is_given_that_type(tmp_path):
    original = Own()
    example = X.astype(np.float64)  # As np.zeros(...) makes it.
    original._set_inputs(example)
    original.save(tmp_path / "saved", save_format="tf")
    files = file_model(tmp_path / "saved", is_trusted=True, compile_options=FROM_FILE)
    ours = made(files)
    np.testing.assert_allclose(ours(X), original(example), rtol=1e-6)
    np.testing.assert_allclose(ours(X, training=True), original(example), rtol=1e-6)


@pytest.mark.long
def test_a_class_of_its_own_trains_as_it_is(tmp_path):
    original, files = saved(tmp_path)
    close(predicted(made(files), X), original(tf.constant(X)).numpy())
    labels = np.ones((3, 2), np.float32)
    original.fit(X, labels, batch_size=3, epochs=2, verbose=0)
    element_spec = (tf.TensorSpec((None, 8, 8, 2)), tf.TensorSpec((None, 2)))
    step = KerasStep(loaded(files, tmp_path), element_spec, learning_rate=0.01)
    batch = Batch(tf.constant(X), tf.constant(labels), 3)
    for _ in range(2):
        step.step(batch, wants_change=False, is_alone=True, salt=0)
    expected = original(tf.constant(X)).numpy()
    np.testing.assert_allclose(predicted(step.model.keras, X), expected, rtol=1e-5, atol=1e-5)


def loaded(files, zoo):
    """The spec of some files, as a job loads it."""
    kind = spec_of(files)
    module = types.ModuleType("from_files")
    module.__file__ = str(zoo / "from_files.py")
    definition = {"kind": kind, "module": module, "symbol": kind.__name__, "parts": {}}
    return LoadedSpec(**definition, spec=kind(), zoo=zoo)


def test_a_class_that_changes_variables_by_itself_is_refused(tmp_path):
    _, files = saved(tmp_path, layers.BatchNormalization)
    with pytest.raises(UserCodeError, match="moving_mean"):
        made(files)


def test_what_is_no_saved_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserCodeError, match=r"without .*\.pb"):
        made(file_model(tmp_path / "empty"))
    (tmp_path / "empty" / "saved_model.pb").write_bytes(b"text")
    with pytest.raises(UserCodeError, match="is damaged"):
        made(file_model(tmp_path / "empty"))


@pytest.mark.long
def test_variables_that_are_lost_are_named(tmp_path):
    varied(pictures()).save(tmp_path / "saved", save_format="tf")
    (tmp_path / "saved" / "variables" / "variables.index").unlink()
    with pytest.raises(UserCodeError, match=r"variables .*SavedModel"):
        made(file_model(tmp_path / "saved"))
