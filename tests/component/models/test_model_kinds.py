"""Models without a spec. These tests load TensorFlow."""

import functools
import itertools
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models import zoo as model_zoo
from edl_horovod.models.zoo import LoadedSpec, Overrides, list_definitions
from edl_horovod.spec import Mode
from tests.later import LATER
from tests.records import example

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS

    load_spec = functools.partial(model_zoo.load_spec, plain_models=PLAIN_MODELS)

ZOO = Path(__file__).parents[2] / "zoo"
HEAD = "import keras, tensorflow as tf\n"
MODULE = (
    HEAD
    + """
def custom_model():
    x = keras.Input((4,), name="x")
    return keras.Model({"x": x}, keras.layers.Dense(1)(x))
def loss(output, labels):
    return tf.reduce_mean(tf.square(output - labels))
def optimizer(lr=0.1):
    return keras.optimizers.SGD(lr)
def dataset_fn(dataset):
    return dataset
"""
)
CLASS = """
class {name}(keras.Model):
    default_loss = "mse"
    default_optimizer = "adam"
    @staticmethod
    def default_input(dataset, mode):
        return dataset
"""
LABELS = np.array([[0.0], [1.0], [2.0]], np.float32)
OUTPUTS = np.array([[0.5], [1.0], [4.0]], np.float32)
VALUES = {"labels": LABELS, "outputs": OUTPUTS}


@pytest.fixture(autouse=True)
def _keep_imports():
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("_edl_zoo") or name in ("model_zoo", "mine"):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def load(tmp_path):
    """Load a model of a file of this text; each time in a zoo of its own."""
    zoos = (tmp_path / f"zoo-{number}" for number in itertools.count())

    def load(text: str, model_def: str = "mine", overrides=None, **params: object) -> LoadedSpec:
        zoo = next(zoos)
        zoo.mkdir()
        (zoo / "mine.py").write_text(text)
        settings = Overrides(**(overrides or {}))
        return load_spec(str(zoo), model_def, params=params, overrides=settings)

    return load


def records():
    data = [example(x=[1.0, 2.0, 3.0, number], y=[float(number)]) for number in range(3)]
    return tf.data.Dataset.from_tensor_slices(data)


@pytest.mark.parametrize("model_def", ["keras_tiny", "keras_tiny.TinyRegressor", "released_tiny"])
def test_a_model_of_another_kind_is_a_whole_spec(model_def):
    spec = load_spec(str(ZOO), model_def, params={}).spec
    features, labels = next(iter(spec.create_dataset(records(), Mode.TRAINING).batch(3)))
    outputs = spec.create_model()(features)
    assert outputs.shape == labels.shape == (3, 1)
    assert spec.create_loss(outputs=outputs, labels=labels).shape == ()
    assert spec.create_optimizer(lr=0.25).learning_rate == 0.25
    (only,) = spec.create_dataset(records(), Mode.PREDICTION).take(1)
    assert list(only) == ["x"]


def test_constructor_parameters_come_from_all_classes(load):
    text = (
        HEAD
        + """
class Base(keras.Model):
    def __init__(self, width=1, **kwargs):
        super().__init__(**kwargs)
        self.width = width
"""
        + CLASS.format(name="Mine").replace("keras.Model", "Base")
        + """
    def __init__(self, depth, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
"""
    )
    model = load(text, depth=2, width=3).spec.create_model()
    assert (model.depth, model.width) == (2, 3)
    with pytest.raises(ConfigError, match=r"'dept'.* lr, .*width\."):
        load(text, dept=2)


def test_a_parameter_reaches_every_part_that_declares_it(load):
    text = MODULE.replace("loss(output, labels)", "loss(output, labels, scale=1)").replace(
        "tf.square(", "scale * tf.square("
    )
    loaded = load(text, scale=10.0, learning_rate=0.5)
    assert float(loaded.spec.create_loss(**VALUES)) == pytest.approx(10 * 4.25 / 3)
    assert loaded.spec.create_optimizer().learning_rate == 0.5


def test_both_names_of_the_learning_rate_are_too_many(load):
    with pytest.raises(ConfigError, match=r"both .*rate"):
        load(MODULE, lr=0.1, learning_rate=0.2)


def test_a_function_and_settings_are_a_model(load):
    text = MODULE.replace("custom_model", "make").replace("dataset_fn", "read")
    loaded = load(text, "mine.make", {"input_fn": "read", "loss": "mae", "optimizer": "adam"})
    assert loaded.parts == {"input_fn": "mine.read", "loss": "mae", "optimizer": "adam"}
    assert float(loaded.spec.create_loss(**VALUES)) == pytest.approx(2.5 / 3)
    assert type(loaded.spec.create_optimizer()).__name__ == "Adam"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"loss": "msee"}, "loss=msee"),
        ({"optimizer": "adm"}, r"optimizer=adm\..*Adadelta"),
        ({"input_fn": "dataset_fm"}, r"'dataset_fm'.*'dataset_fn'"),
        ({"input_fn": "a.b"}, r"'a\.b'"),
        ({"loss": "a b/c"}, "of Keras"),
    ],
)
def test_an_override_that_means_nothing_is_named_with_candidates(load, overrides, named):
    with pytest.raises(ConfigError, match=named):
        load(MODULE, overrides=overrides)


def test_an_override_takes_the_place_of_a_specs_method():
    loaded = load_spec(str(ZOO), "tiny", params={}, overrides=Overrides(loss="mae"))
    assert float(loaded.spec.create_loss(**VALUES)) == pytest.approx(2.5 / 3)
    assert type(loaded.spec).__name__ == "TinySpec"
    assert loaded.parts["input_fn"] == "tiny.TinySpec.create_dataset"


def test_overrides_are_for_training_only():
    with pytest.raises(ConfigError, match=r"loss='mse'"):
        JobConfig(task="evaluate", data="d", trained_model="m", loss="mse")


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ('"mse"', 4.25 / 3),
        ("keras.losses.MeanAbsoluteError()", 2.5 / 3),
        ("keras.losses.MeanAbsoluteError", 2.5 / 3),
        ("lambda y_true, y_pred: tf.reduce_sum(tf.abs(y_true - y_pred), axis=1)", 2.5 / 3),
    ],
)
def test_a_default_loss_may_be_a_name_an_object_a_class_or_a_function(load, loss, expected):
    # A function in a class is called on the class, as a static method is.
    loaded = load(HEAD + CLASS.format(name="Mine").replace('"mse"', loss))
    assert float(loaded.spec.create_loss(**VALUES)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [('"sgd"', 0.01), ("keras.optimizers.SGD(0.5)", 0.5), ("keras.optimizers.SGD", 0.01)],
)
def test_a_default_optimizer_is_made_anew(load, optimizer, rate):
    loaded = load(HEAD + CLASS.format(name="Mine").replace('"adam"', optimizer))
    first, second = loaded.spec.create_optimizer(), loaded.spec.create_optimizer(lr=0.25)
    assert first is not second
    assert (float(first.learning_rate), float(second.learning_rate)) == pytest.approx((rate, 0.25))


def metrics_of(load, functions):
    """A spec whose file has a dictionary of functions as metrics."""
    return load(f"{MODULE}\ndef eval_metrics_fn():\n    return {functions}\n").spec


METRICS = {
    "lambda labels, predictions: tf.abs(labels - predictions)": [0.5, 0.0, 2.0],
    "lambda y_true, y_pred: tf.reduce_mean(tf.abs(y_true - y_pred))": 2.5 / 3,
}


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_are_one_value_an_example_or_a_mean(load, metric):
    spec = metrics_of(load, f"{{'m': {metric}}}")
    metrics = spec.create_metrics(mode=Mode.EVALUATION, **VALUES)
    np.testing.assert_allclose(metrics["m"], METRICS[metric], rtol=1e-6)
    assert spec.create_metrics(mode=Mode.TRAINING, **VALUES) == {}


@pytest.mark.long
@pytest.mark.parametrize("metric", ["keras.metrics.AUC", "keras.metrics.AUC()"])
def test_metrics_of_keras_are_made_once_and_outside_a_traced_step(load, metric):
    spec = metrics_of(load, f"{{'m': {metric}}}")
    created = []

    def step(labels, outputs):
        created.append(spec.create_metrics(Mode.EVALUATION, labels, outputs)["m"])
        return created[-1].counts()

    counts = tf.function(step)(LABELS > 0, OUTPUTS)
    spec.create_metrics(Mode.EVALUATION, LABELS, OUTPUTS)
    assert counts.shape == (4 * 200,)
    assert len({value.metric for value in created}) == 1
    assert created[0].label.startswith("m of eval_metrics_fn of ")


def test_metrics_of_named_outputs(load):
    metrics = "{'a': {'m': lambda labels, predictions: labels - predictions}, 'n': lambda y, p: y}"
    spec = metrics_of(load, metrics)
    outputs = {"a": OUTPUTS, "b": LABELS}
    values = spec.create_metrics(mode=Mode.EVALUATION, labels=LABELS, outputs=outputs)
    assert sorted(values) == ["a_m", "n"]
    with pytest.raises(UserCodeError, match=r"output 'a'.*'b'"):
        spec.create_metrics(mode=Mode.EVALUATION, labels=LABELS, outputs={"b": LABELS})


def test_metrics_of_the_first_releases_take_the_tensors(load):
    text = f"{MODULE}\ndef eval_metrics_fn(predictions, labels):\n    return {{'m': predictions}}\n"
    metrics = load(text).spec.create_metrics(mode=Mode.EVALUATION, **VALUES)
    np.testing.assert_allclose(metrics["m"], OUTPUTS[:, 0])


@pytest.mark.parametrize(
    ("old", "new", "method", "named"),
    [
        ("return keras.Model(", "return print(", "create_model", "custom_model .*mine.py"),
        ("return dataset", "return 3", "create_dataset", "dataset_fn .*mine.py.*: int"),
        ("return tf.reduce_mean", "tf.reduce_mean", "create_loss", "loss .*mine.py.*: None"),
        ("return keras.optim", "keras.optim", "create_optimizer", "optimizer .*NoneType"),
    ],
)
def test_a_wrong_return_type_names_file_and_symbol(load, old, new, method, named):
    spec = load(MODULE.replace(old, new)).spec
    arguments = {
        "create_dataset": {"dataset": records(), "mode": Mode.TRAINING},
        "create_loss": VALUES,
    }
    with pytest.raises(UserCodeError, match=named):
        getattr(spec, method)(**arguments.get(method, {}))


@pytest.mark.parametrize("loss", ['"mse"', "keras.losses.MeanSquaredError()", "own"])
def test_weights_of_examples_count_as_in_keras(load, loss):
    text = "def own(y_true, y_pred):\n    return keras.ops.square(y_true - y_pred)\n"
    spec = load(HEAD + text + CLASS.format(name="Mine").replace('"mse"', loss)).spec
    weights = np.array([1.0, 0.0, 3.0], np.float32)
    expected = keras.losses.MeanSquaredError()(LABELS, OUTPUTS, weights)
    loss_value = spec.create_loss(**VALUES, sample_weight=weights)
    np.testing.assert_allclose(loss_value, expected, rtol=1e-6)


def test_an_optimizer_that_is_copied_leaves_out_what_is_not_to_decay(load):
    default = (
        "keras.optimizers.AdamW()\n    default_optimizer.exclude_from_weight_decay(var_names=['b'])"
    )
    spec = load(HEAD + CLASS.format(name="Mine").replace('"adam"', default)).spec
    optimizer = spec.create_optimizer()
    assert not optimizer._use_weight_decay(keras.Variable(0.0, name="b"))
    assert optimizer._use_weight_decay(keras.Variable(0.0, name="kernel"))


def test_a_model_without_an_input_takes_the_examples_of_an_own_dataset(load):
    without = CLASS.format(name="Mine").partition("    @staticmethod")[0]
    for text in (HEAD + without, MODULE.replace("def dataset_fn", "def data")):
        loaded = load(text, overrides={"has_own_dataset": True})
        examples = object()
        assert loaded.spec.create_dataset(examples, Mode.TRAINING) is examples


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MODULE.replace("def dataset_fn", "def data"), r"custom_model .*mine\.py .*input_fn="),
        (HEAD + "class Mine(keras.Model): pass", r"Mine .* input_fn, loss, optimizer"),
        (
            HEAD + CLASS.format(name="A") + CLASS.format(name="B"),
            r"2 models: mine\.A \(A of .*\), mine\.B \(B of .*mine",
        ),
        (HEAD + "model = 3", "neither a class"),
        (
            HEAD
            + CLASS.format(name="A").replace("@staticmethod", "").replace("(data", "(self, data"),
            r"A\.default_input .*mine\.py .*@staticmethod",
        ),
        (HEAD + CLASS.format(name="A").replace('"mse"', "3"), "default_loss .* function"),
        (
            HEAD + CLASS.format(name="A").replace('"mse"', "keras.losses.Huber(reduction='sum')"),
            "mean over",
        ),
    ],
)
def test_what_cannot_be_a_model_says_why(load, text, named):
    with pytest.raises(UserCodeError, match=named):
        load(text)


def test_helper_classes_beside_the_one_with_defaults_do_not_count(load):
    text = HEAD + "class Block(keras.Model): pass\n" + CLASS.format(name="Mine")
    assert load(text).symbol == "Mine"


def test_callbacks_are_made_anew_and_checked(load):
    loaded = load_spec(str(ZOO), "released_tiny", params={})
    assert loaded.callbacks()[0] is not loaded.callbacks()[0]
    assert load(MODULE).callbacks() == []
    for returned, named in (
        ("None", "NoneType"),
        ("[keras.callbacks.Callback]", "not their class"),
    ):
        wrong = load(f"{MODULE}\ndef callbacks():\n    return {returned}\n")
        with pytest.raises(UserCodeError, match=named):
            wrong.callbacks()


def test_the_outputs_processor_is_found_and_checked(load):
    processor = load_spec(str(ZOO), "released_tiny", params={}).outputs_processor
    assert processor is not None
    assert processor.__name__ == "PredictionOutputsProcessor"
    assert load(MODULE).outputs_processor is None
    with pytest.raises(UserCodeError, match=r"process\(self,"):
        _ = load(f"{MODULE}\nclass PredictionOutputsProcessor: pass\n").outputs_processor


def test_a_released_zoo_imports_its_own_files_through_its_name(tmp_path):
    zoo = tmp_path / "any_name"
    (zoo / "cifar10").mkdir(parents=True)
    (zoo / "cifar10" / "parser.py").write_text("WIDTH = 3\n")
    text = "from model_zoo.cifar10.parser import WIDTH\n" + MODULE
    (zoo / "cifar10" / "mine.py").write_text(text)
    loaded = load_spec(str(zoo), "cifar10.mine.custom_model", params={})
    assert loaded.module.WIDTH == 3
    assert loaded.full_name == "cifar10.mine.custom_model"


def test_one_file_is_a_zoo(tmp_path):
    file = shutil.copyfile(ZOO / "keras_tiny.py", tmp_path / "mine.py")
    for model_def in ("", "mine", "TinyRegressor", "mine.TinyRegressor"):
        loaded = load_spec(str(file), model_def, params={})
        assert (loaded.full_name, loaded.zoo) == ("mine.TinyRegressor", file)
    with pytest.raises(UserCodeError, match=r"'other'.*\.TinyRegressor"):
        load_spec(str(file), "other", params={})


def test_one_file_has_no_siblings(tmp_path):
    (tmp_path / "sibling_of_mine.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text("import sibling_of_mine\n" + MODULE)
    with pytest.raises(UserCodeError, match="sibling_of"):
        load_spec(str(file), "", params={})


def test_all_kinds_are_listed(tmp_path):
    for name in ("keras_tiny", "released_tiny", "tiny"):
        shutil.copy(ZOO / f"{name}.py", tmp_path)
    assert list_definitions(tmp_path) == [
        "keras_tiny.TinyRegressor",
        "released_tiny.custom_model",
        "tiny.TinySpec",
    ]
