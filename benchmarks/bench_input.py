"""Records per second of our input against tf.data's own readers."""

import dataclasses

from benchmarks.common import Comparison, Workspace, compare_rates, median_of

__all__ = ["measure"]

PARSED = "TFRecordDataset, parsed in batches"
COMPARISONS = (
    ("Input, one by one / TFRecordDataset", "ours", "tfrecord", 2.0),
    ("Input, in batches / TFRecordDataset", "ours_batches", "tfrecord", 1.2),
    ("Input, one by one / one record a Python call", "ours", "generator", 8.0),
    ("Input, in batches / one record a Python call", "ours_batches", "generator", 8.0),
    ("Input, one by one / TFRecordDataset, map with AUTOTUNE", "ours", "tfrecord_parallel", None),
    (f"Input, in batches / {PARSED}", "ours_batches", "tfrecord_batches", None),
    (f"Input, in batches, codec=none / {PARSED}", "ours_batches_plain", "tfrecord_batches", 0.9),
    (
        f"Input, in batches, codec=none / {PARSED}, shuffled as widely",
        "ours_batches_plain",
        "tfrecord_batches_wide",
        None,
    ),
    (
        f"Input, in batches, codec=gzip / {PARSED}, GZIP",
        "ours_batches_gzip",
        "tfrecord_batches_gzip",
        None,
    ),
)
"""What the report calls it, our side, the other side, the least ratio."""


def measure(space: Workspace) -> list[Comparison]:
    """Compare passes over the same records, made in turn in one process.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: The process of the passes, or one that writes files, failed.
    """
    for codec in ("none", "gzip"):
        space.run_side(
            "benchmarks.records", f"--num-records={space.settings.num_records}", f"--codec={codec}"
        )
    passes = space.run_side(
        "benchmarks.ours.input_passes",
        f"--repetitions={space.settings.repetitions}",
        f"--generator-records={space.settings.num_generator_records}",
    )
    found = []
    for name, ours, theirs, target in COMPARISONS:
        sides = passes[ours], passes[theirs]
        rates = [[each["rate"] for each in side] for side in sides]
        line = compare_rates(name, *rates, target=target)
        ours_us, theirs_us = (median_of(side, "processor_us") for side in sides)
        detail = f"{line.detail}; processor time {ours_us:.1f} / {theirs_us:.1f} us a record"
        found.append(dataclasses.replace(line, detail=detail))
    return found
