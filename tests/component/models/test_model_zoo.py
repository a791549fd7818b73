"""The models that we ship. These tests load TensorFlow."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.models import zoo_files
from edl_horovod.models.zoo import list_definitions, load_spec
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.framework import FRAMEWORK
    from edl_horovod.frameworks.keras.model import KerasModel

ZOO = Path(__file__).parents[3] / "model_zoo"


@dataclass(frozen=True)
class Case:
    model_def: str
    params: dict[str, object]
    image_shape: tuple[int, ...]


CASES = [
    Case("mnist_functional_api", {}, (28, 28)),
    Case("mnist_subclass", {"dropout": 0.5}, (28, 28)),
    Case("cifar10_functional_api", {"filters": [4, 8]}, (32, 32, 3)),
    Case("cifar10_subclass", {"filters": [4, 8]}, (32, 32, 3)),
]


@pytest.fixture(autouse=True)
def _keep_path():
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.fixture(params=CASES, ids=lambda case: case.model_def)
def case(request):
    return request.param


@pytest.fixture
def loaded(case):
    return load_spec(str(ZOO), case.model_def, params=case.params)


@pytest.fixture
def records(loaded, tmp_path):
    """Images of four classes, of a size and colours that must be converted."""
    contents = []
    for label in range(4):
        file = tmp_path / str(label) / "image.png"
        file.parent.mkdir()
        Image.new("RGBA", (40, 20), (255, 60 * label, 0)).save(file)
        contents.append(loaded.module.prepare_data_for_a_single_file(str(file)))
    return contents


def batch_of(loaded, records: list[bytes], mode: Mode):
    dataset = loaded.spec.create_dataset(tf.data.Dataset.from_tensor_slices(records), mode)
    return next(iter(dataset.batch(len(records))))


@pytest.mark.long
def test_a_model_learns_from_its_own_records(loaded, records, case):
    keras.utils.set_random_seed(0)
    features, labels = batch_of(loaded, records, Mode.TRAINING)
    assert features["image"].shape == (4, *case.image_shape)
    assert float(tf.reduce_max(features["image"])) <= 1
    assert sorted(labels.numpy().ravel()) == [0, 1, 2, 3]
    model = loaded.spec.create_model()
    optimizer = loaded.spec.create_optimizer()
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = loaded.spec.create_loss(outputs=model(features, training=True), labels=labels)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_metrics_are_for_evaluation_only(loaded):
    outputs = np.eye(10, dtype=np.float32)[[3, 1, 2, 0]]
    labels = np.asarray([[3], [1], [0], [0]], dtype=np.int32)
    values = {"outputs": outputs, "labels": labels}
    metrics = loaded.spec.create_metrics(mode=Mode.EVALUATION, **values)
    assert float(metrics["accuracy"]) == 0.75
    assert loaded.spec.create_metrics(mode=Mode.TRAINING, **values) == {}


def test_a_file_outside_a_class_folder_gives_a_record_without_label(loaded, tmp_path):
    file = tmp_path / "unknown" / "image.png"
    file.parent.mkdir()
    Image.new("L", (28, 28), 255).save(file)
    record = loaded.module.prepare_data_for_a_single_file(str(file))
    features = batch_of(loaded, [record], Mode.PREDICTION)
    assert list(features) == ["image"]
    assert float(features["image"][0, 5, 5].numpy().max()) == 1


@pytest.mark.long(after=1)
def test_a_saved_model_gives_the_same_outputs(loaded, records, tmp_path):
    features = batch_of(loaded, records, Mode.PREDICTION)
    model = loaded.spec.create_model()
    outputs = model(features, training=False).numpy()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")(features, training=False).numpy()
    np.testing.assert_allclose(again, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.long(after=1)
def test_a_trained_model_gives_the_same_outputs(loaded, records, case, tmp_path):
    features = batch_of(loaded, records, Mode.PREDICTION)
    like = tf.nest.map_structure(tf.TensorSpec.from_tensor, features)
    model = KerasModel(loaded, like)
    outputs = model.keras(features, training=False).numpy()
    config = JobConfig(
        task="train",
        data="d",
        output="m",
        model_zoo=str(ZOO),
        model_def=case.model_def,
        params=case.params,
    )
    output = tmp_path / "m"
    trained_model.write(
        output,
        loaded=loaded,
        model=model,
        framework=FRAMEWORK,
        config=config,
        metrics={},
        steps=1,
        files=zoo_files.sources(loaded.zoo),
    )

    files = trained_model.read(output)
    again = KerasModel(trained_model.load_spec(files), like)
    trained_model.restore_weights(files, again.weights)

    np.testing.assert_array_equal(again.keras(features, training=False).numpy(), outputs)


def test_the_zoo_lists_its_models():
    assert list_definitions(ZOO) == [
        "cifar10_functional_api.cifar10_functional_api.Cifar10FunctionalSpec",
        "cifar10_subclass.cifar10_subclass.Cifar10SubclassSpec",
        "cifar10_torch.cifar10_torch.Cifar10TorchSpec",
        "classifier.DNN",
        "classifier.Logistic",
        "classifier.wide_and_deep.WideAndDeep",
        "digits_gan.digits_gan.DigitsGanSpec",
        "mnist_functional_api.mnist_functional_api.MnistFunctionalSpec",
        "mnist_subclass.mnist_subclass.MnistSubclassSpec",
        "mnist_torch.mnist_torch.MnistTorchSpec",
        "regressor.DNN",
        "regressor.Linear",
        "regressor.wide_and_deep.MagicalWAD",
    ]
