"""Batches of Keras: errors in pipelines, padding to lengths, and maps that run inline."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edl_horovod import padded
from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.spec import padding_of
from tests.later import LATER, later
from tests.records import write_records

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.batches import inline_maps, pad_to_lengths
    from edl_horovod.frameworks.keras.framework import FRAMEWORK

PARSE = (
    'return tf.io.parse_single_example(record, {{"{name}": tf.io.FixedLenFeature([], tf.int64)}})'
)

ID = """return tf.io.parse_single_example(
                record, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]"""

ROWS = "rows = dataset.map(parse).map(lambda i: tf.range(i + 1))\n"

LENGTHS = [4, 8]

RECORDS = [b"a", b"bcd", b"", b"ef"]

if LATER:
    Pipeline = Callable[[tf.data.Dataset], tf.data.Dataset]


@pytest.fixture
def stream(batches_of, tmp_path):
    """A stream of `id`, `x` and `y` through a pipeline of these lines."""
    data = write_records(tmp_path / "data", 10)

    def make(parse, pipeline="return dataset.map(parse)"):
        body = textwrap.indent(inspect.cleandoc(parse), " " * 4)
        return batches_of(data, f"def parse(record):\n{body}\n{inspect.cleandoc(pipeline)}")

    return make


def test_processes_that_make_examples_are_refused_as_they_are_for_another_framework():
    with pytest.raises(ConfigError, match="processes=2"):
        FRAMEWORK.batches(None, None, None, None, prefetch=1, processes=2)


def test_a_feature_that_the_records_lack_is_named_without_the_graph_around_it(stream):
    with pytest.raises(DataError) as caught:
        stream(PARSE.format(name="age")).try_first()
    names = ("Mine", "prediction", "step 0", "age")
    assert all(name in str(caught.value) for name in names)
    assert "function_node" not in str(caught.value)


def test_records_that_fit_are_tried_and_come_again(stream, next_batches):
    good = stream(PARSE.format(name="id"))
    good.try_first()
    assert next_batches(good, 1)[0].num_examples == 4


@pytest.mark.parametrize(
    ("parse", "pipeline", "line", "said"),
    [
        ("return record", 'raise KeyError("age")', 13, "KeyError: 'age'"),
        ("return tf.nothing(record)", "return dataset.map(parse)", 12, "'tensorflow' has no attr"),
    ],
)
def test_an_error_in_the_pipeline_is_one_line_with_its_place(
    stream, tmp_path, parse, pipeline, line, said
):
    with pytest.raises(UserCodeError) as caught:
        stream(parse, pipeline)
    assert f"{tmp_path}/mine.py:{line}: " in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pipeline",
    [
        "return dataset.shuffle(8).map(parse)",
        "return dataset.map(parse, num_parallel_calls=2, deterministic=False)",
        """options = tf.data.Options()
        options.deterministic = False
        return dataset.with_options(options).map(parse, num_parallel_calls=2)""",
    ],
)
def test_a_pipeline_that_changes_the_order_of_predictions_is_refused(stream, pipeline):
    with pytest.raises(UserCodeError, match=r"shuffle|deterministic"):
        stream(ID, pipeline).try_first()


def test_python_conditions_in_a_mapped_function_still_become_those_of_tensorflow(
    stream, next_batches
):
    parse = """if tf.strings.length(record) > 0:
                return 1
            return 0"""
    (batch,) = next_batches(stream(parse), 1)
    assert batch.features.numpy().tolist() == [1, 1, 1, 1]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("element", "features"),
    [
        ("i, 1.0", lambda i: i),
        ("i, 1.0, 2.0", lambda i: i),
        ("((i, i + 1),)", lambda i: (i, i + 1)),
        ("((i, i + 1), 3)", lambda i: (i, i + 1)),
        ('{"a": i}', lambda i: {"a": i}),
    ],
)
def test_in_predictions_a_tuple_is_features_labels_and_weights_as_in_keras(
    stream, element, features
):
    batches = stream(ID, f"return dataset.map(parse).map(lambda i: ({element}))")
    batch = batches.try_first()
    expected = features(np.arange(batch.num_examples) + first(batch.features))
    np.testing.assert_array_equal(
        tf.nest.flatten(batch.features)[-1], tf.nest.flatten(expected)[-1]
    )
    tf.nest.assert_same_structure(batch.features, expected)
    assert batch.labels is None


def first(features):
    return int(tf.nest.flatten(features)[0][0])


def test_more_parts_than_keras_knows_are_refused(stream):
    with pytest.raises(UserCodeError, match="4 parts"):
        stream(ID, "return dataset.map(parse).map(lambda i: (i, i, i, i))")


def test_examples_are_padded_to_one_of_a_few_lengths(stream, next_batches):
    batches = next_batches(
        stream(ID, ROWS + "return edl_horovod.padded(rows, lengths=[4, 6, 16])"), 3
    )
    longest = [batch.features.numpy().max() + 1 for batch in batches]
    sizes = [batch.features.shape[1] for batch in batches]
    assert sizes == [next(n for n in (4, 6, 16) if n >= length) for length in longest]


def test_an_example_that_is_longer_than_all_lengths_is_an_error(stream, next_batches):
    with pytest.raises(DataError, match=r"lengths=\[8\]"):
        next_batches(stream(ID, ROWS + "return edl_horovod.padded(rows, lengths=[8])"), 3)


@pytest.mark.parametrize(
    ("pipeline", "kind"),
    [
        ("edl_horovod.padded(rows, tf.constant(-1, tf.int64))", later("tf.Tensor")),
        ("rows.map(lambda row: tf.RaggedTensor.from_tensor(row[None]))", later("tf.RaggedTensor")),
    ],
)
def test_examples_of_different_lengths_are_padded_or_ragged(stream, next_batches, pipeline, kind):
    (batch,) = next_batches(stream(ID, f"{ROWS}return {pipeline}"), 1)
    assert batch.num_examples == 4
    assert isinstance(batch.features, kind)
    if kind is tf.Tensor:
        longest = batch.features.numpy().max() + 1
        assert batch.features.shape == (4, longest)
        assert (batch.features.numpy() == -1).sum() == 4 * longest - sum(
            row.max() + 1 for row in batch.features.numpy()
        )


def only_batch(dataset, **options):
    padded_dataset = padded(dataset, lengths=LENGTHS, **options)
    (batch,) = pad_to_lengths(padded_dataset, padding_of(padded_dataset))
    return batch


def examples():
    rows = tf.data.Dataset.range(1, 4)
    return rows.map(
        lambda n: (
            {"ids": tf.range(n), "words": tf.fill([n], "w"), "grid": tf.fill([n, 2 * n, 3], n)},
            n,
        )
    )


def test_every_axis_that_differs_is_padded_and_no_other():
    features, labels = only_batch(examples())
    assert features["ids"].numpy().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0]]
    assert features["words"].numpy().tolist()[0] == [b"w", b"", b"", b""]
    assert features["grid"].shape == (3, 4, 8, 3)
    assert int(tf.reduce_sum(features["grid"])) == sum(n * n * 2 * n * 3 for n in (1, 2, 3))
    assert labels.numpy().tolist() == [1, 2, 3]


def test_the_values_are_those_that_are_given():
    minus = tf.constant(-1, tf.int64)
    values = ({"ids": minus, "words": "-", "grid": minus}, None)
    features, _ = only_batch(examples(), padding_values=values)
    assert features["ids"].numpy()[0].tolist() == [0, -1, -1, -1]
    assert features["words"].numpy()[0].tolist() == [b"w", b"-", b"-", b"-"]
    assert features["grid"].numpy()[2, 3, 7].tolist() == [-1, -1, -1]


def test_one_tensor_an_example_is_padded_with_one_value():
    rows = tf.data.Dataset.range(1, 3).map(tf.range)
    batch = only_batch(rows, padding_values=tf.constant(7, tf.int64))
    assert batch.numpy().tolist() == [[0, 7, 7, 7], [0, 1, 7, 7]]


@pytest.mark.parametrize("lengths", [[8, 4], [4, 4], [0, 4]])
def test_lengths_that_do_not_rise_are_refused(lengths):
    with pytest.raises(UserCodeError, match="must rise"):
        padded(examples(), lengths=lengths)


def _by_autograph(record: "tf.Tensor") -> "tf.Tensor":
    total = tf.constant(0)
    for n in tf.range(tf.strings.length(record)):
        total += n
    return total


def _length(record: bytes) -> np.int64:
    return np.int64(len(record))


def _run(pipeline: "Pipeline", *, is_inlined: bool) -> tuple[list[Any], int]:
    """The elements that a pipeline makes of the records, and how many maps were set."""
    num_set = 0

    def build(records: tf.Tensor) -> tf.data.Dataset:
        nonlocal num_set
        dataset = pipeline(tf.data.Dataset.from_tensor_slices(records))
        if is_inlined:
            num_set = inline_maps(tf.compat.v1.get_default_graph())
        return dataset

    elements = tf.data.Dataset.from_tensors(RECORDS).flat_map(build)
    return [element.numpy().tolist() for element in elements], num_set


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("pipeline", "num_maps"),
    [
        (lambda records: records.map(tf.strings.length), 1),
        (lambda records: records.map(tf.strings.length).filter(lambda n: n > 0), 1),
        (lambda records: records.map(tf.strings.length).map(lambda n: 2 * n), 2),
        (lambda records: records.map(lambda r: tf.numpy_function(_length, [r], tf.int64)), 1),
        (lambda records: records.map(lambda r: tf.strings.split([r], "c").values), 1),
    ],
    ids=["map", "filter", "two maps", "python", "ragged"],
)
def test_maps_without_control_flow_run_inline(pipeline, num_maps):
    elements, num_set = _run(pipeline, is_inlined=True)
    assert num_set == num_maps
    assert elements == _run(pipeline, is_inlined=False)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda r: tf.cond(tf.strings.length(r) > 1, lambda: 1, lambda: 2),
        lambda r: tf.while_loop(lambda n: n < tf.strings.length(r), lambda n: n + 1, [0])[0],
        lambda r: tf.map_fn(lambda n: 2 * n, tf.range(tf.strings.length(r))),
        later("tf.autograph.experimental.do_not_convert(lambda r: tf.function(_by_autograph)(r))"),
        _by_autograph,
    ],
    ids=["cond", "while_loop", "map_fn", "tf.function", "autograph"],
)
def test_control_flow_is_left_to_the_thread_pool(function):
    elements, num_set = _run(lambda records: records.map(function), is_inlined=True)
    assert num_set == 0
    assert len(elements) == len(RECORDS)
