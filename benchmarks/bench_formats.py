"""Records per second of the same pictures in every format, against the format's own library."""

import dataclasses

from benchmarks.common import Comparison, Workspace, compare_rates

__all__ = ["measure"]

LIBRARIES = {
    "tfrecord": "TFRecordDataset, parsed in batches",
    "parquet": "PyArrow, iter_batches",
    "arrow": "PyArrow, mapped into memory",
    "jsonl": "PyArrow, read_json",
    "webdataset": "tarfile",
    "numpy": "numpy.load",
    "folders": "tf.data, read_file",
}
"""Read in the order of the file, where ours shuffles; by the names of the formats."""
RECORDIO = "recordio"
ALONE = ("mds",)
"""Formats without a library here; they are held against RecordIO, as that is what we write."""
RECORDS_PER_PICTURE = 4
"""Of the other benchmarks, for each picture: there are ten sets of these."""


def measure(space: Workspace) -> list[Comparison]:
    """Compare passes over pictures of 32 x 32 pixels, read and not decoded.

    Args:
        space: Takes the files.

    Raises:
        SideFailed: The process of the passes, or the one that writes the files, failed.
    """
    folder = space.folder / "formats"
    number = space.settings.num_records // RECORDS_PER_PICTURE
    formats = f"--formats={folder}"
    size = space.run_side("benchmarks.format_files", f"--number={number}", formats)
    repetitions = f"--repetitions={space.settings.repetitions}"
    rates = space.run_side("benchmarks.ours.format_passes", repetitions, formats)
    others = {name: (f"{name} library", title) for name, title in LIBRARIES.items()}
    others |= dict.fromkeys(ALONE, (RECORDIO, "RecordIO"))
    found = []
    for name, (other, title) in others.items():
        line = compare_rates(f"Format, {name} / {title}", rates[name], rates[other], target=None)
        detail = f"{line.detail}; pictures of {size['picture_bytes']:,.0f} bytes"
        found.append(dataclasses.replace(line, detail=detail))
    return found
