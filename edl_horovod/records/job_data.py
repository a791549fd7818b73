"""A job's data as its settings describe it: the same records and plan wherever they are needed."""

from collections.abc import Callable

from edl_horovod.records.plan import DataPlan, choose_window
from edl_horovod.records.source import DataSettings, JobFolders, RecordSource
from edl_horovod.records.sources.table import kind_of

__all__ = ["CACHE_BYTES", "open_source", "plan_of"]

CACHE_BYTES = 256 << 20
"""Memory of each reader for decoded chunks. Shuffling leaves half of it to chunks at the edges of
windows."""


def open_source(
    data: str,
    settings: DataSettings,
    *,
    folders: JobFolders | None = None,
    tell: Callable[[str], None] | None = None,
) -> RecordSource:
    """Open a job's `data` or `validation_data`.

    Args:
        data: The setting.
        settings: The job's.
        folders: Of the job, for what is found out once for all ranks.
        tell: Called with what people should know.

    Raises:
        DataError: They cannot be read or are damaged, or there are none.
    """
    return kind_of(data).open(data, settings, folders=folders, cache_bytes=CACHE_BYTES, tell=tell)


def plan_of(
    source: RecordSource,
    settings: DataSettings,
    *,
    num_lanes: int,
    is_training: bool,
    global_batch: int = 0,
    rank_batch: int = 0,
) -> DataPlan:
    """The order of a source's records, which are shuffled for training alone.

    Either of the batches is given; see `DataPlan`.

    Raises:
        DataError: The records that tell the size of all cannot be read or are damaged.
    """
    is_shuffled = settings.shuffle and is_training
    return DataPlan(
        block_starts=source.block_starts,
        block_counts=source.block_counts,
        global_batch=global_batch,
        rank_batch=rank_batch,
        num_lanes=num_lanes,
        seed=settings.seed,
        window=choose_window(
            settings.shuffle_window,
            num_lanes=num_lanes,
            record_bytes=source.record_bytes() if is_shuffled else 1,
            most_bytes=CACHE_BYTES // 2,
        ),
        is_shuffled=is_shuffled,
        data_fingerprint=source.fingerprint,
    )
