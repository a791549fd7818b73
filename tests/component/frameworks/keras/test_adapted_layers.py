"""Layers that adapt to the data do so once for a job, and then train as in `fit`."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import DataError
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.tasks.opening import adapt
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.batches import all_examples
    from tests.component.frameworks.keras.fits import assert_trained_as_in_fit
    from tests.fitting import BATCH, STEPS, by_fit, by_us, loaded_with
    from tests.zoo import texts


@pytest.fixture
def data():
    return texts.rows(BATCH * STEPS)


@pytest.fixture
def source(tmp_path, data):
    features, labels = data
    columns = {name: pa.array(list(features[name])) for name in ("text", "city")}
    columns["size"] = pa.array(list(features["size"]), pa.list_(pa.float32(), 2))
    path = tmp_path / "a.feather"
    feather.write_feather(pa.table({**columns, "y": labels[:, 0]}), str(path), chunksize=100)
    with open_source(str(path), DataConfig()) as source:
        yield source


def adapted(source, folder, loaded):
    plan = plan_of(source, DataConfig(), num_lanes=1, is_training=False, global_batch=64)
    messages = []
    adapt(
        loaded, source, folder, messages.append, examples=lambda: all_examples(source, plan, loaded)
    )
    return messages


@pytest.mark.long
def test_text_categories_and_numbers_train_as_in_fit(source, data, tmp_path):
    loaded = loaded_with("texts.TextsSpec")
    assert adapted(source, tmp_path, loaded) == ["looked at all examples"]
    step, _ = by_us(loaded, data=data)

    spec = loaded_with("texts.TextsSpec").spec
    layers = {name: make() for name, make in texts.UNADAPTED.items()}
    for name, layer in layers.items():
        layer.adapt(data[0][name])
    model = texts.model_of(layers)
    model.compile(spec.create_optimizer(), "mse")
    by_fit(model, data)
    # A layer that was given its mean keeps it as a constant, and no variable for it.
    ours, expected = step.model.keras.trainable_variables, model.trainable_variables
    for variable, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_other_processes_and_a_resumed_job_have_the_same_without_looking(source, tmp_path):
    first, second = loaded_with("texts.TextsSpec"), loaded_with("texts.TextsSpec")
    adapted(source, tmp_path, first)
    assert adapted(source, tmp_path, second) == []
    assert first.spec.adapted == second.spec.adapted
    stored = json.loads((tmp_path / "adapted.json").read_text())["value"]
    assert stored == first.spec.adapted
    assert len(stored["text"]["vocabulary"]) == 6


def test_examples_can_be_gone_through_again_and_hold_each_record_once(source, data):
    loaded = loaded_with("texts.TextsSpec")
    plan = plan_of(source, DataConfig(), num_lanes=1, is_training=False, global_batch=64)
    with all_examples(source, plan, loaded) as examples:
        for _ in range(2):
            labels = np.concatenate([batch.numpy() for _, batch in examples])
            np.testing.assert_array_equal(labels, data[1])


def test_what_is_wrong_with_the_data_is_said_as_in_training(source, tmp_path):
    loaded = loaded_with("texts.TextsSpec")
    create_dataset = loaded.spec.create_dataset

    def failing(dataset, mode):
        def checked(features, labels):
            with tf.control_dependencies([tf.debugging.assert_less(labels, 1.5, "too large")]):
                return features, tf.identity(labels)

        return create_dataset(dataset, mode).map(checked)

    loaded.spec.create_dataset = failing
    with pytest.raises(DataError, match=r"TextsSpec.*large") as caught:
        adapted(source, tmp_path, loaded)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("width", [1, 3])
def test_the_example_of_the_page_works(width):
    page = Path(__file__).parents[4] / "docs" / "reference" / "keras.md"
    _, _, section = page.read_text().partition("## Layers that adapt to the data")
    code = section[section.index("    def moments") : section.index("`examples` is")]
    names = {"np": np, "keras": keras, "ElasticDLSpec": object}
    exec(textwrap.dedent(code).replace("...", "return age, size"), names)
    spec = names["Reviews"]()

    random = np.random.default_rng(1)
    age, size = (random.normal(3, 2, shape).astype(np.float32) for shape in (40, (40, width)))
    features = {"text": np.array(["a word"] * 40), "age": age, "size": size}
    value = spec.adapt(tf.data.Dataset.from_tensor_slices((features, age)).batch(8))
    spec.adapted = json.loads(json.dumps(value, default=lambda array: array.tolist()))
    for layer, values in zip(spec.create_model(), (age[:, None], size), strict=True):
        normal = np.asarray(layer(values))
        np.testing.assert_allclose(normal.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(normal.std(0), 1, atol=1e-5)


@pytest.mark.long
def test_a_layer_that_adapts_inside_create_model_is_taken_as_it_is(data):
    words = [text for text in data[0]["text"] if text][:50]

    def layers():
        adapted = {name: make() for name, make in texts.UNADAPTED.items()}
        adapted["text"].adapt(words)
        adapted["city"].set_vocabulary(texts.CITIES)
        adapted["size"].adapt(data[0]["size"][:50])
        return adapted

    loaded = loaded_with("texts.TextsSpec")
    loaded.spec.create_model = lambda: texts.model_of(layers())
    step, _ = by_us(loaded, data=data)
    spec = loaded_with("texts.TextsSpec").spec
    model = texts.model_of(layers())
    model.compile(spec.create_optimizer(), "mse")
    assert_trained_as_in_fit(step, model, data)
