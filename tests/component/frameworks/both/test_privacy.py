"""Steps with `federated.privacy` in both frameworks: clipping, noise, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from edl_horovod.config.schema import FederatedConfig, PrivacyConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks import privacy
from edl_horovod.spec import Phase
from tests.jobs import training
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf
    from torch import nn

    from tests.component.frameworks.both import steps
    from tests.component.frameworks.both.steps import trained_values

KERAS, TORCH = later("Keras"), later("Torch")
FRAMEWORKS = pytest.mark.parametrize("framework", [KERAS, TORCH])
BATCH, RATE, CLIP = 8, 0.5, 0.3


def settings(noise=1e-9, clip=CLIP, **train):
    """Those of a party; by default its noise is too small to see."""
    federated = FederatedConfig(rounds=2, privacy=PrivacyConfig(clip=clip, noise=noise))
    return training(BATCH, train, federated=federated)


def arrays(count, number=0):
    random = np.random.default_rng(number)
    # Gradients on both sides of the limit.
    x = random.normal(size=(count, 4)).astype(np.float32) * random.choice([0.05, 1], (count, 1))
    return x.astype(np.float32), np.sin(x.sum(1, keepdims=True)).astype(np.float32)


if LATER:

    class Keras(steps.Keras):
        rate = RATE

        @staticmethod
        def mixing(outputs, labels):
            return tf.reduce_mean(100.0 * tf.square(outputs - tf.reduce_mean(outputs) / 2 - labels))

        @staticmethod
        def model(kind):
            x = keras.Input(shape=(4,), name="x")
            layer = {
                "dropout": lambda x: keras.layers.Dropout(0.5)(x),
                "batch norm": lambda x: keras.layers.BatchNormalization()(x),
                "layer norm": lambda x: keras.layers.LayerNormalization()(x),
                "wide": lambda x: keras.layers.Dense(3000)(x),
            }[kind]
            return keras.Model({"x": x}, keras.layers.Dense(1)(layer(x)))

    class Torch(steps.Torch):
        rate = RATE

        @staticmethod
        def mixing(outputs, labels):
            return (100.0 * (outputs - outputs.mean() / 2 - labels) ** 2).mean()

        @staticmethod
        def model(kind):
            layer = {
                "dropout": nn.Dropout(0.5),
                "batch norm": nn.BatchNorm1d(4),
                "layer norm": nn.LayerNorm(4),
                "python": _ReadsValues(),
                "wide": nn.Linear(4, 3000),
            }[kind]
            return _Sequence(layer, nn.Linear(3000 if kind == "wide" else 4, 1))

    class _Sequence(nn.Sequential):
        def forward(self, features):
            return super().forward(features["x"])

    class _ReadsValues(nn.Module):
        def forward(self, x):
            return x * 2.0 if float(x.sum()) > 0 else x


def batch_of(framework, x, y, num_records=None):
    batch = steps.batch_of(framework, {"x": x}, y)
    return batch if num_records is None else replace(batch, places=lambda: np.arange(num_records))


def change_of(step, batch):
    """The change of the trained variables in a step, which is undone."""
    before = trained_values(step)
    sums = steps.run(step, batch)
    changes = {name: value - before[name] for name, value in trained_values(step).items()}
    for name, value in before.items():
        step.variables[name].assign(value)
    return changes, sums


def gradients_of(plain, framework, x, y):
    """The gradient of each example, by a step without privacy on a batch of that alone."""
    gradients = []
    for i in range(len(x)):
        changes, _ = change_of(plain, batch_of(framework, x[i : i + 1], y[i : i + 1]))
        gradients.append({name: -change / RATE for name, change in changes.items()})
    return gradients


def norm_of(gradient):
    return np.sqrt(sum(np.sum(part.astype(np.float64) ** 2) for part in gradient.values()))


@pytest.mark.long(after=1)
@FRAMEWORKS
@pytest.mark.parametrize(
    ("count", "at_once", "parts"), [(BATCH, 100, 1), (BATCH, 3, 2), (5, 3, 1), (1, 100, 1)]
)
def test_gradients_are_clipped_one_by_one_and_divided_by_the_batch_size(
    framework, count, at_once, parts, monkeypatch
):
    plain = framework.make_step(training(BATCH))
    num_values = sum(value.size for value in trained_values(plain).values())
    monkeypatch.setattr(privacy, "GRADIENT_BYTES", 4 * num_values * at_once)
    step = framework.make_step(settings(accumulate_steps=parts))
    for name, other in zip(step.trained, plain.trained, strict=True):
        step.variables[name].assign(plain.variables[other].numpy())
    x, y = arrays(count)
    gradients = gradients_of(plain, framework, x, y)
    norms = [norm_of(gradient) for gradient in gradients]
    if count > 1:
        assert min(norms) < CLIP < max(norms)
    changes, sums = change_of(step, batch_of(framework, x, y))
    for name, other in zip(step.trained, plain.trained, strict=True):
        clipped = [
            gradient[other] * min(1.0, CLIP / norm)
            for gradient, norm in zip(gradients, norms, strict=True)
        ]
        expected = -RATE * sum(clipped) / BATCH
        np.testing.assert_allclose(changes[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    _, plain_sums = change_of(plain, batch_of(framework, x, y))
    assert sums.num_examples == count
    assert sums.loss == pytest.approx(plain_sums.loss, rel=1e-5)
    assert sums.metrics == pytest.approx(plain_sums.metrics, rel=1e-5)


@pytest.mark.long(after=1)
@FRAMEWORKS
def test_no_example_moves_the_sum_by_more_than_the_clip_even_if_the_loss_mixes_them(framework):
    step = framework.make_step(settings(), create_loss=framework.mixing)
    x, y = arrays(BATCH)
    before, _ = change_of(step, batch_of(framework, x, y))
    assert norm_of(before) > 0
    x[3], y[3] = 50.0, -1000.0
    after, _ = change_of(step, batch_of(framework, x, y))
    moved = norm_of({name: after[name] - before[name] for name in before}) * BATCH / RATE
    assert 0 < moved <= 2 * CLIP * 1.001


@FRAMEWORKS
def test_the_noise_has_the_deviation_that_is_set_and_is_drawn_anew(framework):
    noise = 3.0
    step = framework.make_step(settings(noise=noise), create_model=lambda: framework.model("wide"))
    batch = batch_of(framework, *arrays(5))
    drawn = [change_of(step, batch)[0] for _ in range(2)]
    expected = RATE * noise * CLIP / BATCH
    flat = [np.concatenate([part.reshape(-1) for part in of.values()]) for of in drawn]
    assert flat[0].size > 15000
    for numbers in flat:
        assert numbers.std() == pytest.approx(expected, rel=0.03)
        assert numbers.mean() == pytest.approx(0, abs=expected * 0.05)
    assert abs(np.corrcoef(flat)[0, 1]) < 0.05


@pytest.mark.long(after=1)
@FRAMEWORKS
def test_noise_is_never_that_of_a_seed(framework):
    changes = []
    for _ in range(2):
        step = framework.make_step(settings(noise=1.0))
        parts = change_of(step, batch_of(framework, *arrays(5)))[0].values()
        changes.append(np.concatenate([part.reshape(-1) for part in parts]))
    assert np.mean(np.isclose(*changes, rtol=1e-3)) < 0.1


def test_drawn_numbers_are_normal():
    numbers = privacy.noise((201, 501), 2.0)
    assert numbers.shape == (201, 501)
    flat = np.sort(numbers.reshape(-1)) / 2.0
    assert flat.mean() == pytest.approx(0, abs=0.015)
    assert flat.std() == pytest.approx(1, abs=0.01)
    for share, quantile in {0.00135: -3.0, 0.1587: -1.0, 0.5: 0.0, 0.8413: 1.0}.items():
        assert flat[int(share * flat.size)] == pytest.approx(quantile, abs=0.12)
    assert privacy.noise((), 1.0).shape == ()


@FRAMEWORKS
def test_examples_draw_dropout_of_their_own(framework):
    step = framework.make_step(
        settings(clip=1e6, noise=1e-12), create_model=lambda: framework.model("dropout")
    )
    x = np.full((BATCH, 4), 2.0, np.float32)
    y = np.full((BATCH, 1), 1e4, np.float32)  # The gradient of a weight is its input, nearly.
    changes, _ = change_of(step, batch_of(framework, x, y))
    (kernel,) = [change for change in changes.values() if change.size == 4]
    shares = kernel.reshape(-1) / (RATE * 2 * 4.0 * 1e4 / BATCH)
    counts = np.round(shares).astype(int)
    np.testing.assert_allclose(shares, counts, atol=0.05)
    assert set(counts) - {0, BATCH}


@FRAMEWORKS
def test_layers_that_normalise_single_examples_train(framework):
    step = framework.make_step(settings(), create_model=lambda: framework.model("layer norm"))
    changes, sums = change_of(step, batch_of(framework, *arrays(5)))
    assert sums.is_finite
    assert all(np.any(change) for change in changes.values())


def test_a_module_that_reads_values_is_an_error():
    step = Torch.make_step(settings(), create_model=lambda: Torch.model("python"))
    with pytest.raises(UserCodeError, match=r"single .*\.privacy"):
        change_of(step, batch_of(Torch, *arrays(5)))


@FRAMEWORKS
def test_more_examples_than_records_are_refused(framework):
    step = framework.make_step(settings())
    with pytest.raises(UserCodeError, match=r"6 .*3 records"):
        change_of(step, batch_of(framework, *arrays(6), num_records=3))
    change_of(step, batch_of(framework, *arrays(3), num_records=6))  # Some were left out.


def float16_model():
    x = keras.Input(shape=(4,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1, dtype="mixed_float16")(x))
    model.dtype_policy = "mixed_float16"
    return model


def sparse_model():
    x = keras.Input(shape=(4,), name="x", sparse=True)
    return keras.Model({"x": x}, keras.layers.Dense(1)(x))


def loss_scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))


SPARSE = "({'x': tf.SparseTensorSpec((None, 4), tf.float32)}, Keras.example[1])"
KERAS_WEIGHTS = "(*Keras.example, tf.TensorSpec((None,), tf.float32))"
TORCH_WEIGHTS = "replace(Torch.example, weights=Torch.example.labels[:, 0])"


@pytest.mark.parametrize(
    ("framework", "example", "methods", "message"),
    [
        (KERAS, None, {"create_model": lambda: Keras.model("batch norm")}, "GroupNorm"),
        (TORCH, None, {"create_model": lambda: Torch.model("batch norm")}, "GroupNorm"),
        (KERAS, later(SPARSE), {"create_model": sparse_model}, "dense"),
        (KERAS, later(KERAS_WEIGHTS), {}, "weights"),
        (TORCH, later(TORCH_WEIGHTS), {}, "weights"),
        # An overflow of theirs would leave out steps.
        (KERAS, None, {"create_model": float16_model}, "float16"),
        (KERAS, None, {"create_optimizer": loss_scaled}, "float16"),
    ],
)
def test_what_has_no_gradient_for_each_example_is_refused(framework, example, methods, message):
    with pytest.raises(UserCodeError, match=message):
        framework.make_step(settings(), example=example, **methods)


@FRAMEWORKS
def test_phases_are_refused(framework):
    def phases(model):
        variables = model.trainable_variables if framework is Keras else [*model.parameters()]
        return [Phase("all", variables)]

    with pytest.raises(ConfigError, match=r"federated\.privacy"):
        framework.make_step(
            settings(), create_phases=phases, create_phase_loss=lambda phase, model: 0.0
        )


@FRAMEWORKS
def test_frozen_variables_stay_as_they_are(framework):
    def model():
        built = framework.model("wide")
        if framework is Keras:
            built.layers[1].trainable = False
        else:
            built[0].requires_grad_(False)
        return built

    step = framework.make_step(settings(noise=1.0), create_model=model)
    assert len(step.trained) == 2
    before = steps.values_of(step.model_variables)
    steps.run(step, batch_of(framework, *arrays(5)))
    for name, value in steps.values_of(step.model_variables).items():
        is_changed = not np.array_equal(value, before[name])
        assert is_changed == (name in step.trained), name


def pairs_of(framework):
    """A loss that masks examples, as a sum and its divisor."""

    def loss(outputs, labels):
        if framework is Keras:
            counts = tf.cast(labels > 0, tf.float32)
            return tf.reduce_sum(counts * tf.square(outputs - labels)), tf.reduce_sum(counts)
        counts = (labels > 0).float()
        return (counts * (outputs - labels) ** 2).sum(), counts.sum()

    return loss


@FRAMEWORKS
def test_an_example_that_a_loss_masks_adds_nothing(framework):
    job, loss = settings(), pairs_of(framework)
    step = framework.make_step(job, create_loss=loss)
    x, y = arrays(6)
    y[:3], y[3:] = np.abs(y[:3]) + 0.1, -1.0
    with_masked, sums = change_of(step, batch_of(framework, x, y))
    without, expected = change_of(step, batch_of(framework, x[:3], y[:3]))
    for name, change in with_masked.items():
        np.testing.assert_allclose(change, without[name], rtol=1e-4, atol=1e-7)
    assert sums.loss == pytest.approx(expected.loss, rel=1e-5)
    assert norm_of(with_masked) > 0
