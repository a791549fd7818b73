"""The interface of data sources, which hides from a job where its records are stored.

This module does not import NumPy, so that commands that only check the settings start quickly.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edl_horovod.errors import ConfigError
from edl_horovod.records.files.input_file import Closeable
from edl_horovod.records.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edl_horovod.records.columns import Values

__all__ = [
    "DataSettings",
    "FormatSettings",
    "JobFolders",
    "RecordSource",
    "Records",
    "SourceKind",
    "SourceRequest",
    "ignore_message",
    "refuse_skipping",
]

Records = list[bytes] | list["Values"]
"""Records as bytes, or as one array of values per column if the source has a `layout`."""


class FormatSettings(Protocol):
    """The settings of `data_plan` that formats use."""

    @property
    def damaged(self) -> str:
        """`raise` an error at damaged records, or `skip` them."""

    @property
    def csv_header(self) -> bool:
        """Whether the first line of each CSV file names the columns."""

    @property
    def max_chunk_bytes(self) -> int:
        """Maximum size of a RecordIO chunk before compression, in bytes."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns to read, in this order; empty for all columns of the files."""


class DataSettings(FormatSettings, Protocol):
    """The settings of `data_plan` that sources and plans use."""

    @property
    def seed(self) -> int:
        """Seed of the order of records."""

    @property
    def shuffle(self) -> bool:
        """Whether training shuffles the records."""

    @property
    def shuffle_window(self) -> int:
        """Number of records of a lane that are shuffled together; 0 chooses it automatically."""


@dataclass(frozen=True)
class JobFolders:
    """A job's folders for data that its sources compute once for all ranks; created on demand."""

    index: Path
    """For the index of files; a new job starts with an empty one."""
    records: Path
    """For the cached records of streams, which later jobs reuse."""
    unfinished_records: Path
    """For records of streams that are being written; removed when the job ends."""


def ignore_message(message: str) -> None:
    """Stand in where no function for messages was passed; the messages are in the log, too."""


@dataclass(frozen=True)
class SourceRequest:
    """What a job opens."""

    data: str
    """The user's setting, with its scheme."""
    settings: DataSettings
    """The job's settings of `data_plan`."""
    folders: JobFolders | None
    """The job's folders; None outside a job."""
    cache_bytes: int
    """Memory for decoded data that may be requested again."""
    tell: Callable[[str], None]
    """Called with messages for the user: the progress of long operations, and warnings about files
    that have changed."""

    @property
    def index_folder(self) -> Path | None:
        """The job's folder for an index; None to save no index."""
        return self.folders.index if self.folders is not None else None


class RecordSource(Closeable):
    """Records numbered from 0, grouped into blocks of records that are stored close together.

    Every rank opens its own source. Sources with equal fingerprints number the same records in the
    same way.
    """

    block_starts: "NDArray[np.int64]"
    """First record id of each block, shape (blocks,); starts at 0, without gaps."""
    block_counts: "NDArray[np.int64]"
    """Number of records of each block, at least 1, shape (blocks,)."""
    fingerprint: str
    """Identifies the records and their numbering; stored in checkpoints."""
    layout: Layout | None = None
    """The columns of a record; None if records are bytes."""

    @abc.abstractmethod
    def read(self, ids: "Sequence[int] | NDArray[np.integer]") -> Records:
        """Return the records with these ids, in this order; thread-safe.

        Returns:
            The bytes of each record; from a source with a layout, the values of each column.

        Raises:
            DataError: A record cannot be read or is damaged.
        """

    @abc.abstractmethod
    def record_bytes(self) -> float:
        """Estimate the average size of a record in memory, in bytes.

        Raises:
            DataError: The records that it is estimated from cannot be read.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Describe the source for the log."""


class SourceKind(abc.ABC):
    """A kind of `data` setting; imports the libraries for reading at first use."""

    runs_user_code = False
    """Whether `open` imports a module that may be in the model zoo."""

    @abc.abstractmethod
    def open(self, request: SourceRequest) -> RecordSource:
        """Open the records.

        Raises:
            DataError: There are no records, or they cannot be read.
        """

    def check(self, datasets: Sequence[str], settings: DataSettings) -> None:
        """Check quickly, before a job starts, all of its `data` settings of this kind.

        Raises:
            ConfigError: A setting does not apply to this kind.
            DataError: Data is missing, or cannot be read together.
        """

    def state(self, data: str) -> str:
        """Return a value that changes with `data`, without reading records; "" if unsupported."""
        return ""

    def absolute(self, data: str, make_absolute: Callable[[str], str]) -> str:
        """Return `data` with absolute paths; `make_absolute` leaves URLs unchanged."""
        return data

    def local_patterns(self, data: str) -> Iterator[str]:
        """Yield the paths, folders and globs on local file systems that are read."""
        yield from ()


def refuse_skipping(data: str, settings: DataSettings, *, why: str) -> None:
    """Refuse `damaged=skip` for data whose damaged records cannot be skipped.

    Args:
        data: The name of the data in the message.
        settings: The job's settings of `data_plan`.
        why: A clause that says why records cannot be skipped.

    Raises:
        ConfigError: `damaged=skip` is set.
    """
    if settings.damaged == "skip":
        raise ConfigError(
            f"data_plan.damaged=skip is not possible for {data}: {why}.",
            received={"data_plan.damaged": settings.damaged},
            hint="Remove the setting; damaged data then ends the job with an error. Damaged records"
            " can be skipped in RecordIO, CSV, TFRecord, Parquet, JSON lines and image files.",
        )
