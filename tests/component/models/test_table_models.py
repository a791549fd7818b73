"""The models of tables, in each framework, on columns that have types and on rows of texts."""

import datetime
import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.columns.infer import Column
from edl_horovod.columns.summary import text_cells
from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Mode
from tests.frameworks import FRAMEWORKS, NEEDS_KERAS

ZOO = Path(__file__).parents[3] / "model_zoo"
NUM_ROWS = 120


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    return request.param


def texts(values):
    cells = np.empty(len(values), object)
    cells[:] = [str(value).encode() for value in values]
    return cells


def table(num_rows=NUM_ROWS):
    """Columns as `adapt` gets them: what is learned depends on all but `name`."""
    random = np.random.default_rng(num_rows)
    role, age = random.integers(0, 3, num_rows), random.integers(18, 65, num_rows)
    is_full = random.random(num_rows) < 0.5
    first = datetime.date(2000, 1, 1)
    days = [first + datetime.timedelta(days=int(day)) for day in random.integers(0, 900, num_rows)]
    salary = 20_000.0 * role + 300.0 * age + 9_000.0 * is_full
    return {
        "name": texts(range(num_rows)),
        "role": texts(np.array(["clerk", "cook", "chief"])[role]),
        "age": age,
        "full": is_full,
        "hired": np.array(days, "datetime64[D]"),
        "salary": salary,
        "level": np.digitize(salary, [30_000, 50_000]),
    }


def spec_of(model_def, framework, **params):
    if framework == "torch":
        from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
    else:
        from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
    return load_spec(str(ZOO), model_def, params=params, plain_models=PLAIN_MODELS).spec


def adapted(spec, cells):
    messages = []
    summary = spec.adapt(records=iter(()), blocks=iter([cells]), tell=messages.append)
    spec.adapted = json.loads(json.dumps(summary))
    return messages


def adapted_to_table(model_def, framework, **params):
    """A spec that has seen the table, the table's cells, and what was said of them."""
    spec, cells = spec_of(model_def, framework, **params), table()
    return spec, cells, adapted(spec, cells)


def as_a_source_gives(cells):
    """As a source of columns gives them: dates are numbers."""
    return {
        name: values.astype(np.int64) if values.dtype.kind == "M" else values
        for name, values in cells.items()
    }


def batch_of(spec, cells, mode):
    """One batch of all rows, as the framework makes it of records with columns."""
    if spec.framework == "torch":
        import torch

        def values_of(values):
            return values.tolist() if values.dtype == object else torch.as_tensor(values)

        records = {name: values_of(values) for name, values in as_a_source_gives(cells).items()}
        return spec.create_dataset(records, mode)
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensors(as_a_source_gives(cells))
    return next(iter(spec.create_dataset(dataset, mode)))


@dataclass
class Trained:
    spec: object
    model: object
    losses: list

    def outputs(self, features):
        """What the model predicts, as arrays."""
        if self.spec.framework == "torch":
            self.model.eval()
            return {name: value.detach().numpy() for name, value in self.model(features).items()}
        return {name: value.numpy() for name, value in self.model(features).items()}


def trained(spec, parts, num_steps=60):
    features, labels, *weights = parts
    weights = {"sample_weight": weights[0]} if weights else {}
    model, losses = spec.create_model(), []
    if spec.framework == "torch":
        optimizer = spec.create_optimizer(model=model)
        for _ in range(num_steps):
            loss = spec.create_loss(outputs=model(features), labels=labels, **weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return Trained(spec, model, losses)
    import tensorflow as tf

    optimizer = spec.create_optimizer()
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = spec.create_loss(outputs=model(features), labels=labels, **weights)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    losses += [float(step()) for _ in range(num_steps)]
    return Trained(spec, model, losses)


@pytest.mark.long
@pytest.mark.parametrize("model_def", ["regressor.DNN", "regressor.wide_and_deep.MagicalWAD"])
def test_a_regressor_learns_the_number_in_its_own_unit(framework, model_def):
    params = {"label": "salary", "hidden_units": [16]}
    spec, cells, messages = adapted_to_table(model_def, framework, **params)
    assert any("hired: dates" in message for message in messages)
    model = trained(spec, batch_of(spec, cells, Mode.TRAINING), 150)
    assert model.losses[-1] < 0.1 * model.losses[0]

    del cells["salary"]  # Nobody knows it yet.
    predicted = model.outputs(batch_of(spec, cells, Mode.PREDICTION))["prediction"]
    error = np.abs(predicted - table()["salary"])
    assert predicted.shape == (NUM_ROWS,)
    assert error.mean() < 6_000


@pytest.mark.long(after=1)
def test_far_beyond_its_rows_a_regressor_goes_on_as_a_line(framework):
    spec = spec_of("regressor.DNN", framework, label="y")
    x = np.linspace(-2, 2, NUM_ROWS)
    cells = {"x": x, "y": np.abs(x) * 10.0 + 5 * x}
    adapted(spec, cells)
    features = batch_of(spec, cells, Mode.PREDICTION)
    first = trained(spec, batch_of(spec, cells, Mode.TRAINING), 0)
    np.testing.assert_allclose(first.outputs(features)["prediction"], cells["y"].mean(), rtol=1e-5)

    model = trained(spec, batch_of(spec, cells, Mode.TRAINING), 200)
    far = batch_of(spec, {"x": np.array([20.0, 21.0, 41.0])}, Mode.PREDICTION)
    near, next_one, last = model.outputs(far)["prediction"].tolist()
    assert last - next_one == pytest.approx(20 * (next_one - near), rel=1e-3)


@pytest.mark.long(after=1)
def test_a_linear_regressor_finds_the_line_of_rows_that_it_has_not_seen(framework):
    linear_columns = ("role", "age", "full", "salary")
    cells = {name: table()[name] for name in linear_columns}
    spec = spec_of("regressor.Linear", framework, label="salary")
    adapted(spec, cells)
    spec.create_optimizer = functools.partial(spec.create_optimizer, lr=0.05)
    model = trained(spec, batch_of(spec, cells, Mode.TRAINING), 400)
    unseen = {name: table(80)[name] for name in linear_columns}
    error = model.outputs(batch_of(spec, unseen, Mode.EVALUATION)[0])["prediction"]
    error = error - unseen["salary"]
    assert np.abs(error).mean() < 0.02 * unseen["salary"].std()


@pytest.mark.long(after=1)
def test_a_logistic_model_gives_each_category_its_own_class(framework):
    names = ["ant", "bee", "cow", "doe"]
    which = np.arange(NUM_ROWS) % 4
    cells = {"animal": texts(np.array(names)[which]), "kind": texts(np.array(names)[which])}
    spec = spec_of("classifier.Logistic", framework, label="kind")
    adapted(spec, cells)
    parts = batch_of(spec, cells, Mode.TRAINING)
    outputs = trained(spec, parts, 600).outputs(parts[0])
    assert outputs["class"].tolist() == which.tolist()


@pytest.mark.long(after=1)
@pytest.mark.parametrize("model_def", ["classifier.DNN", "classifier.wide_and_deep"])
@pytest.mark.parametrize(
    ("label", "classes"),
    [("role", ["chief", "clerk", "cook"]), ("full", [False, True]), ("level", [0, 1, 2])],
)
def test_a_classifier_learns_texts_booleans_and_whole_numbers(framework, model_def, label, classes):
    params = {"label": label, "hidden_units": [16], "class_weights": "auto"}
    spec, cells, _ = adapted_to_table(model_def, framework, **params)
    assert spec.adapted["classes"]["values"] == classes
    parts = batch_of(spec, cells, Mode.TRAINING)
    counts = np.bincount(np.asarray(parts[1]))
    by_class = np.bincount(np.asarray(parts[1]), np.asarray(parts[2]))
    np.testing.assert_allclose(by_class, NUM_ROWS / len(counts), rtol=1e-5)

    outputs = trained(spec, parts).outputs(parts[0])
    np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(outputs["class"], outputs["probabilities"].argmax(axis=1))
    names = np.array([str(value) for value in classes])[outputs["class"]]
    truth = [v.decode() if isinstance(v, bytes) else str(v) for v in cells[label].tolist()]
    assert np.mean(names == truth) > 0.9


COLUMNS = [
    {"kind": "numeric", "name": "age", "for": "deep"},
    {"kind": "embedding", "of": "role", "dimension": 3, "for": "deep"},
    {"kind": "seq_category_id", "name": "tags", "num_buckets": 5, "for": "deep"},
    {"kind": "bucket", "name": "age", "borders": [30, 50], "for": "wide"},
    {"kind": "indicator", "of": "role", "for": "wide"},
    {"kind": "cross", "of": ["role", "full"], "num_buckets": 50, "for": "wide"},
]


@pytest.mark.long(after=1)
def test_clauses_say_what_each_part_reads(framework):
    spec = spec_of("regressor.wide_and_deep", framework, label="salary", columns=COLUMNS)
    cells = {**table(), "tags": texts(["0,3", "", "4"] * (NUM_ROWS // 3))}
    assert adapted(spec, cells)[-1] == "not read: hired, level, name"
    parts = batch_of(spec, cells, Mode.TRAINING)
    assert {name: tuple(value.shape) for name, value in parts[0].items()} == {
        "codes_0": (NUM_ROWS, 1),
        "codes_1": (NUM_ROWS, 2),
        "codes_2": (NUM_ROWS, 1),
        "codes_3": (NUM_ROWS, 1),
        "deep_numbers": (NUM_ROWS, 1),
        "wide_numbers": (NUM_ROWS, 4),
    }
    losses = trained(spec, parts).losses
    assert losses[-1] < losses[0]


def test_whole_numbers_that_are_categories_have_the_same_codes_as_floats(framework):
    clauses = [
        {"kind": "embedding", "of": "age", "dimension": 2},
        {"kind": "category_hash", "name": "level", "num_buckets": 50},
        {"kind": "cross", "of": ["level", "role"], "num_buckets": 50},
    ]
    params = {"label": "salary", "columns": clauses}
    spec, cells, messages = adapted_to_table("regressor.DNN", framework, **params)
    num_ages = len(np.unique(cells["age"]))
    assert any(line.endswith(f", {num_ages} values") for line in messages)
    assert spec.features.parts["deep"].tables[0].num_codes == num_ages + 1
    expected = batch_of(spec, cells, Mode.PREDICTION)
    floats = {**cells, "age": cells["age"] * 1.0, "level": cells["level"] * 1.0}
    features = batch_of(spec, floats, Mode.PREDICTION)
    for name, codes in expected.items():
        assert np.array_equal(np.asarray(features[name]), np.asarray(codes))


def test_what_the_training_did_not_have_is_unknown_and_told_once(framework, caplog):
    spec, cells, _ = adapted_to_table("regressor.DNN", framework, label="salary")
    new = {**cells, "role": texts(["baker"] * NUM_ROWS), "age": np.full(NUM_ROWS, np.nan)}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            batch_of(spec, new, Mode.PREDICTION)
    messages = [r.getMessage().partition(":")[0] for r in caplog.records]
    assert [message for message in messages if message.startswith("the column")] == [
        "the column 'role' has 'baker', which the training did not have",
        "the column 'age' has empty cells, which the training did not have",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": None}, "no column 'age'"),
        ({"age": texts(range(NUM_ROWS))}, "'age'.*Received: texts"),
        ({"role": np.arange(NUM_ROWS)}, "'role'.*Received: integers"),
        ({"salary": None}, "no column 'salary'"),
    ],
)
def test_data_that_are_not_those_of_the_training_are_refused(framework, change, said):
    spec, cells, _ = adapted_to_table("regressor.DNN", framework, label="salary")
    changed = {k: v for k, v in {**cells, **change}.items() if v is not None}
    with pytest.raises(DataError, match=said):
        batch_of(spec, changed, Mode.EVALUATION)


@pytest.mark.parametrize(
    ("model_def", "label", "said"),
    [
        ("regressor.DNN", "role", "be a number"),
        ("regressor.DNN", "salaries", "'salaries'.*'salary'"),
        ("classifier.DNN", "salary", "'salary' .*classifier"),
        ("classifier.DNN", "empty", "2 to 1,000"),
    ],
)
@NEEDS_KERAS
def test_a_label_that_cannot_be_learned_is_refused(model_def, label, said):
    spec = spec_of(model_def, "keras", label=label)
    with pytest.raises(DataError, match=said):
        adapted(spec, {**table(), "empty": texts([""] * NUM_ROWS)})


@pytest.mark.parametrize(
    "params",
    [{"columns": [{"kind": "bukket", "name": "a"}]}, {"class_weights": "auto"}, {"columns": 3}],
)
@NEEDS_KERAS
def test_parameters_that_mean_nothing_are_refused(params):
    with pytest.raises((ConfigError, UserCodeError)):
        spec_of("regressor.DNN", "keras", **params)


def test_rows_of_a_csv_file_are_texts_of_which_empty_ones_are_left_out(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("age,role\n31,cook\n,chief\n")
    loaded = load_spec(str(ZOO), "regressor.DNN", params={})
    records = list(loaded.module.prepare_data_for_a_single_file(str(file)))
    columns = [Column(name=name, kind="text", num_rows=2, num_empty=0) for name in ("age", "role")]
    values = {name: cells.tolist() for name, cells in text_cells(records, columns).items()}
    assert values == {"age": [b"31", b""], "role": [b"cook", b"chief"]}
