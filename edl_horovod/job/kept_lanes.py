"""The lanes of a resumed training, which come from its checkpoint: its order depends on them."""

import json
from dataclasses import replace
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS, num_lanes
from edl_horovod.files.safetensors_header import read_metadata
from edl_horovod.job import checkpoint_files
from edl_horovod.job.directory import JobDir

__all__ = ["with_checkpoint_lanes"]


def with_checkpoint_lanes(config: JobConfig) -> JobConfig:
    """The settings with the lanes of the job's newest checkpoint, unless the user set lanes.

    This lets a job go on with another launch.np or elastic.max_np. Launcher, coordinator and ranks
    each call it and get the same result: all checkpoints in a job's directory have the same lanes.
    """
    may_choose = config.data_plan.lanes == 0 and config.resume != "never"
    if not may_choose or not TASKS[config.task].keeps_state:
        return config
    saved_lanes = _checkpoint_lanes(JobDir.of(config).checkpoints, config)
    if not saved_lanes or saved_lanes == num_lanes(config):
        return config
    return replace(config, data_plan=replace(config.data_plan, lanes=saved_lanes))


def _checkpoint_lanes(folder: Path, config: JobConfig) -> int:
    """The lanes of the newest readable checkpoint; 0 if there is none with this batch size."""
    batch = config.train.batch_size, config.elastic.batching
    for step in reversed(checkpoint_files.steps_in(folder)):
        try:
            with checkpoint_files.path_of(folder, step).open("rb") as stream:
                facts = json.loads(read_metadata(stream)["facts"])
            saved = facts["train.batch_size"], facts.get("elastic.batching", "global")
            # The training refuses a checkpoint with another batch size, so its lanes do not count.
            return int(facts["data_plan.lanes"]) if saved == batch else 0
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Damaged, or just removed: the ranks use the previous checkpoint, too.
    return 0
