"""Labels are numbers, or classes that all rows name."""

import numpy as np
import pytest

from edl_horovod.columns.summary import Classes, TableSummary, summarize
from edl_horovod.errors import DataError
from edl_horovod.records.examples import example
from tests.unit.columns.test_typed import texts


def of_blocks(*blocks, has_classes=True):
    return summarize(
        iter(()),
        [{"y": block, "x": np.arange(len(block))} for block in blocks],
        label="y",
        has_classes=has_classes,
        kinds={},
        tell=lambda line: None,
    )


@pytest.mark.parametrize(
    ("blocks", "values", "counts"),
    [
        ([texts("b", "a"), texts("b")], ("a", "b"), (1, 2)),
        ([np.array([10, 9]), np.array([9])], (9, 10), (2, 1)),
        ([np.array([True, True]), np.array([False])], (False, True), (1, 2)),
    ],
)
def test_classes_are_sorted_and_counted(blocks, values, counts):
    summary = of_blocks(*blocks)
    assert summary.classes == Classes("y", values, counts)
    assert TableSummary.from_json(summary.to_json()) == summary
    encoded = np.concatenate([summary.classes.encode(block) for block in blocks])
    assert np.bincount(encoded).tolist() == list(counts)


def test_weights_make_all_classes_count_the_same():
    weights = Classes("y", ("a", "b"), (90, 10)).weights()
    np.testing.assert_allclose(weights * [90, 10], 50, rtol=1e-6)


def test_a_class_that_the_training_did_not_have_is_an_error():
    with pytest.raises(DataError, match=r"Received: 'c'.*'a', 'b'"):
        Classes("y", ("a", "b"), (1, 1)).encode(texts("a", "c"))


def test_texts_of_a_file_without_types_are_classes_as_they_are():
    rows = [example({"y": text, "x": b"1"}) for text in (b"1", b"01", b"1")]
    summary = summarize(rows, None, label="y", has_classes=True, kinds={}, tell=lambda line: None)
    assert summary.classes == Classes("y", ("01", "1"), (1, 2))


@pytest.mark.parametrize(
    ("values", "has_classes", "detail"),
    [
        (np.array([1.5, 2]), True, "'y' .*text.*whole number.*boolean"),
        (np.array([1, 1]), True, "Received: 1 values: 1"),
        (np.arange(1001), True, "Received: 1,001 values"),
        (texts("a", "b"), False, "must be a number"),
        (np.array([True, False]), False, "must be a number"),
        (np.array([1, np.nan, 2]), False, "'y' is empty in row 2"),
    ],
)
def test_a_label_that_cannot_be_learned_is_refused(values, has_classes, detail):
    with pytest.raises(DataError, match=detail):
        of_blocks(values, has_classes=has_classes)
