"""A job's data as its settings describe it: the same index and plan wherever they are needed."""

from edl_horovod.config.schema import JobConfig
from edl_horovod.data.index import Index
from edl_horovod.data.plan import DataPlan, choose_num_lanes

__all__ = ["open_index", "plan_of"]


def open_index(config: JobConfig, pattern: str) -> Index:
    """Index some of a job's files.

    Args:
        config: The job.
        pattern: Its `data` or `validation_data`.

    Raises:
        DataError: A file cannot be read or is damaged, or there are no records.
    """
    return Index.open(
        pattern, damaged=config.data_plan.damaged, csv_header=config.data_plan.csv_header
    )


def plan_of(config: JobConfig, index: Index, *, is_training: bool) -> DataPlan:
    """The order of an index's records.

    Args:
        config: The job.
        index: Of the files.
        is_training: Only then is anything shuffled.
    """
    batch = config.train.batch_size
    return DataPlan(
        block_starts=index.block_starts,
        block_counts=index.block_counts,
        global_batch=batch,
        num_lanes=choose_num_lanes(batch, config.data_plan.lanes),
        seed=config.data_plan.seed,
        window=config.data_plan.shuffle_window,
        is_shuffled=config.data_plan.shuffle and is_training,
        data_fingerprint=index.fingerprint,
    )
