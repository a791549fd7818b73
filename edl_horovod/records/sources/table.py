"""The table of source modules by scheme."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl_horovod.extensions import Table, module_of

if TYPE_CHECKING:
    from edl_horovod.records.source import DataSettings, SourceKind

SCHEMES = Table(
    "sources",
    {"": "edl_horovod.records.data_files", "dataset": "edl_horovod.records.user_dataset"},
    load=module_of,
)
"""Modules with a `KIND`, by the scheme before the first colon of `data`.

The empty scheme is for paths, and for URLs of file systems.
"""


def kind_of(data: str) -> "SourceKind":
    """Return the kind of source of a job's `data` or `validation_data` setting."""
    scheme = data[: data.find(":")] if ":" in data else ""
    kind: SourceKind = importlib.import_module(SCHEMES.get(scheme, SCHEMES[""])).KIND
    return kind


def check_sources(datasets: Sequence[str], settings: "DataSettings") -> None:
    """Check a job's `data` and `validation_data` quickly; "" is ignored.

    Raises:
        ConfigError: A setting does not apply to the data.
        DataError: Data is missing, or cannot be read together.
    """
    by_kind: dict[SourceKind, list[str]] = {}
    for data in filter(None, datasets):
        by_kind.setdefault(kind_of(data), []).append(data)
    for kind, kind_datasets in by_kind.items():
        kind.check(kind_datasets, settings)
