"""The models that the zoo has twice train alike, from the same weights on the same records."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.models.modules import load_function
from edl_horovod.models.zoo import Overrides, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import keras
    import torch

    from edl_horovod.frameworks.keras.batches import KerasBatches
    from edl_horovod.frameworks.keras.framework import FRAMEWORK as KERAS
    from edl_horovod.frameworks.keras.step import KerasStep
    from edl_horovod.frameworks.torch.batches import TorchBatches
    from edl_horovod.frameworks.torch.framework import TorchFramework
    from tests.torch_ring import make_step

ZOO = str(Path(__file__).parents[4] / "model_zoo")
NUM, BATCH, LANES, STEPS = 64, 16, 4, 12
SGD = Overrides(optimizer="sgd")
DATA = DataConfig(shuffle_window=16)


@dataclass(frozen=True)
class Twins:
    keras: str
    torch: str
    params: dict
    shape: tuple
    rate: float
    num_equal_steps: int = STEPS
    """Steps until rounding may decide which pixel of a pool is largest, or if a unit is on."""


TWINS = [
    Twins("mnist_subclass", "mnist_torch", {"dropout": 0.0}, (28, 28), 2e-3),
    Twins(
        "cifar10_subclass",
        "cifar10_torch",
        {"dropout": 0.0, "filters": [4, 8]},
        (32, 32, 3),
        3e-4,
        num_equal_steps=3,
    ),
]


@pytest.fixture(params=TWINS, ids=lambda twins: twins.torch)
def twins(request):
    return request.param


@pytest.fixture
def images(tmp_path, twins):
    random = np.random.default_rng(1)
    files = []
    for number in range(NUM):
        file = tmp_path / str(number % 10) / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        # A shade for each class, and noise.
        pixels = 20 * (number % 10) + random.integers(0, 40, twins.shape)
        PIL.Image.fromarray(pixels.astype(np.uint8)).save(file)
        files.append(file)
    return files


def prepared(model_def, images):
    prepare = load_function(ZOO, model_def, "prepare_data_for_a_single_file")
    return [prepare(str(file)) for file in images]


def losses(step, batches):
    batches.restart(range(LANES), 0, STEPS)
    return [
        step.step(batches.next_batch(), wants_change=False, is_alone=True, salt=0).loss
        for _ in range(STEPS)
    ]


def give_weights(model, module, twins):
    """Give a module the weights of a Keras model, whose layers have them in the same order."""
    kernels = [variable for variable in model.variables if variable.path.split("/")[-1] == "kernel"]
    biases = [variable for variable in model.variables if variable.path.split("/")[-1] == "bias"]
    layers = [
        part for part in module.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Linear)
    ]
    biased = iter(biases)
    for layer, kernel in zip(layers, kernels, strict=True):
        value = kernel.numpy()
        if isinstance(layer, torch.nn.Conv2d):
            value = value.transpose(3, 2, 0, 1)
        else:
            # Keras flattens height, width, channels; PyTorch the channels first.
            channels = layers[-2].out_channels
            side = round((layer.in_features / channels) ** 0.5)
            value = value.reshape(side, side, channels, -1).transpose(3, 2, 0, 1)
            value = value.reshape(layer.out_features, layer.in_features)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(value)))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(next(biased).numpy()))


@pytest.mark.long
def test_twins_of_the_zoo_have_the_same_records_and_the_same_curve(twins, images, tmp_path):
    records = prepared(twins.keras, images)
    assert prepared(twins.torch, images) == records
    with Writer(tmp_path / "a.recordio") as writer:
        for record in records:
            writer.write(record)
    with open_source(str(tmp_path / "a.recordio"), DATA) as source:
        plan = plan_of(source, DATA, num_lanes=LANES, is_training=True, global_batch=BATCH)
        settings = {"params": twins.params, "overrides": SGD}
        keras.utils.set_random_seed(1)
        loaded = load_spec(ZOO, twins.keras, plain_models=KERAS.plain_models, **settings)
        ours = KerasBatches(source, plan, loaded, Mode.TRAINING, prefetch=1)
        step = KerasStep(loaded, ours.element_spec, learning_rate=twins.rate)

        loaded = load_spec(ZOO, twins.torch, plain_models=TorchFramework.plain_models, **settings)
        twin_batches = TorchBatches(source, plan, loaded, Mode.TRAINING, prefetch=1)
        twin = make_step(loaded, twin_batches.element_spec, learning_rate=twins.rate)
        give_weights(step.model.keras, twin.model.runner.module, twins)

        curves = losses(step, ours), losses(twin, twin_batches)
        # Rounding, which ReLU and pooling amplify with each step; processors differ in it.
        np.testing.assert_allclose(*np.array(curves)[:, : twins.num_equal_steps], rtol=1e-4)
        np.testing.assert_allclose(*curves, rtol=1e-2)
        first, last = curves[0][:4], curves[0][-4:]
        assert np.mean(last) < np.mean(first)
