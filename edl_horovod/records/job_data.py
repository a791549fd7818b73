"""Opens a job's data and plans its order from the settings, identically on every rank."""

from collections.abc import Callable

from edl_horovod.records.plan import DataPlan, choose_window
from edl_horovod.records.source import (
    DataSettings,
    JobFolders,
    RecordSource,
    SourceRequest,
    ignore_message,
)
from edl_horovod.records.sources.table import kind_of

CACHE_BYTES = 256 << 20
"""Memory of each reader for decoded chunks. The shuffle windows may take half of it; the other half
is for chunks at the edges of windows."""


def open_source(
    data: str,
    settings: DataSettings,
    *,
    folders: JobFolders | None = None,
    tell: Callable[[str], None] = ignore_message,
) -> RecordSource:
    """Open a job's `data` or `validation_data`.

    Args:
        data: The value of the setting.
        settings: The job's settings of `data_plan`.
        folders: The job's folders, for results that all ranks share.
        tell: Called with messages for the user.

    Raises:
        DataError: The records cannot be read or are damaged, or there are none.
    """
    request = SourceRequest(data, settings, folders, cache_bytes=CACHE_BYTES, tell=tell)
    return kind_of(data).open(request)


def plan_of(
    source: RecordSource,
    settings: DataSettings,
    *,
    num_lanes: int,
    is_training: bool,
    global_batch: int = 0,
    rank_batch: int = 0,
    warmup_steps: int = 0,
    warmup_batch: int = 0,
) -> DataPlan:
    """Return the order of a source's records, which are shuffled only for training.

    Exactly one of `global_batch` and `rank_batch` is set; see `DataPlan`.

    Raises:
        DataError: The records that the average size is estimated from cannot be read.
    """
    is_shuffled = settings.shuffle and is_training
    return DataPlan(
        block_starts=source.block_starts,
        block_counts=source.block_counts,
        global_batch=global_batch,
        rank_batch=rank_batch,
        warmup_steps=warmup_steps,
        warmup_batch=warmup_batch,
        num_lanes=num_lanes,
        seed=settings.seed,
        window=choose_window(
            settings.shuffle_window,
            num_lanes=num_lanes,
            record_bytes=source.record_bytes() if is_shuffled else 1,
            max_bytes=CACHE_BYTES // 2,
        ),
        is_shuffled=is_shuffled,
        data_fingerprint=source.fingerprint,
    )
