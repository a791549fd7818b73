"""The proof from the ledger of one job."""

import contextlib
import os
from collections.abc import Iterator

from edl_horovod.config.tasks import num_lanes, training_batch
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir
from edl_horovod.job.kept_lanes import with_kept_lanes
from edl_horovod.ledger.check import Proof, check
from edl_horovod.ledger.files import read

__all__ = ["prove"]

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Keeps TensorFlow's notices from the terminal, and the GPU free: nothing is computed here."""


def prove(job_dir: JobDir) -> Proof:
    """The proof from the ledger of a job that has ended, or of what a running one has done so far.

    Raises:
        ConfigError: The job has no ledger.
        DataError: Its data is not there any more, so it is not known what it should have applied.
    """
    from edl_horovod.models.lookup import require_zoo
    from edl_horovod.models.modules import make_importable
    from edl_horovod.records.job_data import open_source, plan_of
    from edl_horovod.records.sources.table import kind_of

    config = with_kept_lanes(job_dir.read_config())
    if config.debug.ledger and not any(job_dir.ledger.glob("*.jsonl")):
        raise ConfigError(
            "The job's ledger has no entries yet: no rank of it has reached the first step.",
            received=repr(str(job_dir)),
            hint=f"See edl status {job_dir}",
        )
    if not job_dir.ledger.is_dir():
        raise ConfigError(
            "The job has no ledger.",
            received=repr(str(job_dir)),
            hint="Only a training that was started with debug.ledger=true has one.",
        )
    if kind_of(config.data).runs_user_code:
        make_importable(require_zoo(config.model_zoo).absolute())
    # What the user's own data imports reads these variables while it is imported.
    with (
        _environment(_QUIET),
        open_source(config.data, config.data_plan, folders=job_dir.folders) as source,
    ):
        plan = plan_of(
            source,
            config.data_plan,
            num_lanes=num_lanes(config),
            is_training=True,
            **training_batch(config),
        )
    return check(read(job_dir.ledger), plan)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, for a while."""
    new = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
