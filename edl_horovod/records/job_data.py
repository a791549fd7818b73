"""A job's data as its settings describe it: the same index and plan wherever they are needed."""

from edl_horovod.config.schema import JobConfig
from edl_horovod.records.index import Index
from edl_horovod.records.lanes import choose_num_lanes
from edl_horovod.records.plan import DataPlan, choose_window
from edl_horovod.records.sources.recordio import Reader, memory_bytes

__all__ = ["CACHE_BYTES", "open_index", "plan_of"]

CACHE_BYTES = 256 << 20
"""Memory of each reader for decoded chunks. Shuffling leaves half of it to chunks at the edges of
windows."""


def open_index(config: JobConfig, pattern: str) -> Index:
    """Index some of a job's files.

    Args:
        config: The job.
        pattern: Its `data` or `validation_data`.

    Raises:
        DataError: A file cannot be read or is damaged, or there are no records.
    """
    settings = config.data_plan
    return Index.open(
        pattern,
        damaged=settings.damaged,
        csv_header=settings.csv_header,
        max_chunk_bytes=settings.max_chunk_bytes,
    )


def plan_of(config: JobConfig, index: Index, *, is_training: bool) -> DataPlan:
    """The order of an index's records.

    Args:
        config: The job.
        index: Of the files.
        is_training: Only then is anything shuffled.

    Raises:
        DataError: The chunk that tells the records' size cannot be read or is damaged.
    """
    batch = config.train.batch_size
    num_lanes = choose_num_lanes(batch, config.data_plan.lanes)
    is_shuffled = config.data_plan.shuffle and is_training
    return DataPlan(
        block_starts=index.block_starts,
        block_counts=index.block_counts,
        global_batch=batch,
        num_lanes=num_lanes,
        seed=config.data_plan.seed,
        window=choose_window(
            config.data_plan.shuffle_window,
            num_lanes=num_lanes,
            record_bytes=_record_bytes(index) if is_shuffled else 1,
            most_bytes=CACHE_BYTES // 2,
        ),
        is_shuffled=is_shuffled,
        data_fingerprint=index.fingerprint,
    )


def _record_bytes(index: Index) -> float:
    """What a record takes in memory, in the mean: the largest chunk tells how far data unpacks."""
    largest = max(
        range(len(index.chunks)), key=lambda number: index.chunks[number].compressed_bytes
    )
    with Reader(index) as reader:
        unpacked = memory_bytes(reader.read_chunk(largest))
    packed = sum(chunk.compressed_bytes for chunk in index.chunks)
    ratio = unpacked / index.chunks[largest].compressed_bytes
    return packed * ratio / index.num_records
