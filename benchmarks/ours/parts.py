"""The job's parts, put together as `tasks.opening` does, for the sides that need them bare."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import MODELS, RECORDIO_PATTERN
from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.models.zoo import LoadedSpec, load_spec
from edl_horovod.records.index import Index
from edl_horovod.records.job_data import CACHE_BYTES
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode

PREFETCH_STEPS = 4
"""The schema's default of data_plan.prefetch_steps."""


def load(symbol: str) -> LoadedSpec:
    """A spec of `benchmarks/models`."""
    return load_spec(str(MODELS), f"cnn.{symbol}", params={})


@contextlib.contextmanager
def open_stream(
    data: Path, loaded: LoadedSpec, batch_size: int
) -> Iterator[tuple[KerasBatches, DataPlan]]:
    """A stream over the RecordIO files, with a reader that has read nothing yet.

    Args:
        data: Folder of the files.
        loaded: The spec that parses.
        batch_size: The global batch.
    """
    index = Index.open(str(data / RECORDIO_PATTERN))
    plan = DataPlan(
        block_starts=index.block_starts,
        block_counts=index.block_counts,
        global_batch=batch_size,
        num_lanes=choose_num_lanes(batch_size, 0, num_ranks=1, most_ranks=0),
    )
    with Reader(index, cache_bytes=CACHE_BYTES) as reader:
        yield KerasBatches(reader, plan, loaded, Mode.TRAINING, prefetch=PREFETCH_STEPS), plan
