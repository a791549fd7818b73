"""Reads predictions that a job wrote, in the order of the rows, without a framework."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.examples import read_examples
from edl_horovod.records.reader import Reader

__all__ = ["Predictions", "read_predictions"]

_ROWS = 1_000
_SCHEMA = "schema.json"


@dataclass(frozen=True)
class Predictions:
    """The outputs of a model for the rows of a SELECT."""

    folder: Path
    shapes: dict[str, tuple[int, ...]]
    """The shape of each output for one row."""
    num_rows: int

    def batches(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Batches of outputs by name, each of shape (rows, ...).

        Raises:
            DataError: The files are damaged.
        """
        with Reader.open(str(self.folder)) as reader:
            records = iter(reader)
            while batch := list(islice(records, _ROWS)):
                yield read_examples(batch, self.shapes)


def read_predictions(folder: Path) -> Predictions:
    """Open the predictions in a folder.

    Raises:
        DataError: An output has no fixed shape, or the folder is damaged.
    """
    schema = json.loads((folder / _SCHEMA).read_bytes())
    shapes = {name: tuple(feature["shape"]) for name, feature in schema["features"].items()}
    if varying := [name for name, shape in shapes.items() if None in shape]:
        raise DataError(
            f"The output {varying[0]!r} of the model differs in size from row to row.",
            received=f"shape {shapes[varying[0]]}",
            hint="Use a model of the zoo that gives one value a row.",
        )
    return Predictions(folder, shapes, int(schema["num_records"]))
