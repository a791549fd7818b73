"""Records per second of our input against tf.data's own readers."""

from benchmarks.common import Comparison, Workspace, compare_rates

__all__ = ["measure"]

COMPARISONS = (
    ("Input, one by one / TFRecordDataset", "ours", "tfrecord", 1.2),
    ("Input, in batches / TFRecordDataset", "ours_batches", "tfrecord", 1.2),
    ("Input, one by one / one record a Python call", "ours", "generator", 8.0),
    ("Input, in batches / one record a Python call", "ours_batches", "generator", 8.0),
    ("Input, one by one / TFRecordDataset, map with AUTOTUNE", "ours", "tfrecord_parallel", None),
    (
        "Input, in batches / TFRecordDataset, parsed in batches",
        "ours_batches",
        "tfrecord_batches",
        None,
    ),
)
"""What the report calls it, our side, the other side, the least ratio."""


def measure(space: Workspace) -> list[Comparison]:
    """Compare passes over the same records, made in turn in one process.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: The process of the passes failed.
    """
    rates = space.run_side(
        "benchmarks.ours.input_passes",
        f"--repetitions={space.settings.repetitions}",
        f"--generator-records={space.settings.num_generator_records}",
    )
    return [
        compare_rates(name, rates[ours], rates[theirs], target=target)
        for name, ours, theirs, target in COMPARISONS
    ]
