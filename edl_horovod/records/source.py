"""The seam between a job and its records: where they are is known behind it alone.

This module needs no NumPy, so that the commands can ask what a setting names.
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
    "JobFolders",
    "RecordSource",
    "Records",
    "SourceKind",
    "refuse_skipping",
]

Records = list[bytes] | list["Values"]
"""Some records: their bytes, or the values of each column of a source that has a `layout`."""


class DataSettings(Protocol):
    """The settings of `data_plan` that a source and a plan follow."""

    @property
    def damaged(self) -> str:
        """`raise` at damaged records, or `skip` them."""

    @property
    def csv_header(self) -> bool:
        """Whether the first line of each CSV file names the columns."""

    @property
    def max_chunk_bytes(self) -> int:
        """Most bytes of a RecordIO chunk before compression."""

    @property
    def columns(self) -> list[str]:
        """The columns that are read, in this order; empty for all."""

    @property
    def seed(self) -> int:
        """Seed of the order."""

    @property
    def shuffle(self) -> bool:
        """Whether training shuffles."""

    @property
    def shuffle_window(self) -> int:
        """Records of a lane that are shuffled among each other; 0 leaves it to us."""


@dataclass(frozen=True)
class JobFolders:
    """Where a job keeps what its sources find out once for all ranks; made when it is needed."""

    index: Path
    """For the index of files; a new job begins without it."""
    records: Path
    """For the records of streams, which later jobs read again."""
    unfinished_records: Path
    """For the same while they are written; removed when the job ends."""


class RecordSource(Closeable):
    """Records that are numbered from 0, in blocks of records that lie near each other.

    Every rank opens a source of its own. All of them number the same records in the same way
    if their fingerprints are equal.
    """

    block_starts: "NDArray[np.int64]"
    """First record id of each block, shape (blocks,); 0 first, each the end of the one before."""
    block_counts: "NDArray[np.int64]"
    """Number of records of each block, at least 1, shape (blocks,)."""
    fingerprint: str
    """Differs where the records or their numbers do; checkpoints hold it."""
    layout: Layout | None = None
    """The columns of a record; None where records are bytes."""

    @abc.abstractmethod
    def read(self, ids: "Sequence[int] | NDArray[np.integer]") -> Records:
        """The records with these ids, in this order; any thread may call it.

        Returns:
            Their bytes; of a source with a layout the values of each of its columns.

        Raises:
            DataError: A record cannot be read or is damaged.
        """

    @abc.abstractmethod
    def record_bytes(self) -> float:
        """What a record takes in memory on average, in bytes; an estimate.

        Raises:
            DataError: What it is estimated from cannot be read.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """What the source holds, for the log."""


class SourceKind(abc.ABC):
    """One way of saying in `data` where records are; imports at first use what reading needs."""

    runs_user_code = False
    """Whether `open` imports a module that may lie in the model zoo."""

    @abc.abstractmethod
    def open(
        self,
        data: str,
        settings: DataSettings,
        *,
        folders: JobFolders | None,
        cache_bytes: int,
        tell: Callable[[str], None] | None,
    ) -> RecordSource:
        """Open the records.

        Args:
            data: What the user says, with the scheme.
            settings: The job's.
            folders: Of the job; None where there are none.
            cache_bytes: Memory for what was read and may be asked for again.
            tell: Called with what people should know: how far a long preparation is, and what is
                not as it was.

        Raises:
            DataError: There are no records, or they cannot be read.
        """

    def check(self, given: Sequence[str], settings: DataSettings) -> None:
        """Find quickly what is wrong with all `data` of one job of this kind, before it starts.

        Raises:
            ConfigError: A setting means nothing for it.
            DataError: Something is not there, or cannot be read together.
        """

    def state(self, data: str) -> str:
        """What tells without reading any record whether `data` is as it was; "" if nothing does."""
        return ""

    def absolute(self, data: str, make_absolute: Callable[[str], str]) -> str:
        """The same `data` with paths made absolute; `make_absolute` leaves a URL as it is."""
        return data

    def local_patterns(self, data: str) -> Iterator[str]:
        """The paths, folders and globs on file systems of this host that are read."""
        yield from ()


def refuse_skipping(data: str, settings: DataSettings, *, why: str) -> None:
    """Refuse `damaged=skip` for data in which nothing can be found damaged and left out.

    Args:
        data: What is read.
        settings: The job's.
        why: What keeps records from being left out, a clause.

    Raises:
        ConfigError: It is set.
    """
    if settings.damaged == "skip":
        raise ConfigError(
            f"data_plan.damaged=skip cannot be followed for {data}: {why}.",
            received={"data_plan.damaged": settings.damaged},
            cure="Leave the setting out: then damaged data ends the job with an error. RecordIO,"
            " CSV, TFRecord, Parquet, JSON lines and pictures can leave out what is damaged.",
        )
