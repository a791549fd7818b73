"""Mapped functions run inline where they can, and give the same examples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.inline_maps import inline_maps

RECORDS = [b"a", b"bcd", b"", b"ef"]

Pipeline = Callable[[tf.data.Dataset], tf.data.Dataset]


def _by_autograph(record: tf.Tensor) -> tf.Tensor:
    total = tf.constant(0)
    for n in tf.range(tf.strings.length(record)):
        total += n
    return total


def _length(record: bytes) -> np.int64:
    return np.int64(len(record))


def _run(pipeline: Pipeline, *, is_inlined: bool) -> tuple[list[Any], int]:
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
def test_maps_without_control_flow_run_inline(pipeline: Pipeline, num_maps: int) -> None:
    elements, num_set = _run(pipeline, is_inlined=True)
    assert num_set == num_maps
    assert elements == _run(pipeline, is_inlined=False)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda r: tf.cond(tf.strings.length(r) > 1, lambda: 1, lambda: 2),
        lambda r: tf.while_loop(lambda n: n < tf.strings.length(r), lambda n: n + 1, [0])[0],
        lambda r: tf.map_fn(lambda n: 2 * n, tf.range(tf.strings.length(r))),
        tf.autograph.experimental.do_not_convert(lambda r: tf.function(_by_autograph)(r)),
        _by_autograph,
    ],
    ids=["cond", "while_loop", "map_fn", "tf.function", "autograph"],
)
def test_control_flow_is_left_to_the_thread_pool(function: Callable[..., Any]) -> None:
    elements, num_set = _run(lambda records: records.map(function), is_inlined=True)
    assert num_set == 0
    assert len(elements) == len(RECORDS)
