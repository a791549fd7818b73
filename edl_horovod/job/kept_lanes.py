"""The lanes of a training that goes on: those of its checkpoint, which its order depends on."""

import json
from dataclasses import replace
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS, num_lanes
from edl_horovod.files.safetensors_header import read_metadata
from edl_horovod.job import checkpoint_files
from edl_horovod.job.directory import JobDir

__all__ = ["with_kept_lanes"]


def with_kept_lanes(config: JobConfig) -> JobConfig:
    """The settings, with the lanes of the job's newest checkpoint where the user gave none.

    Only so may a job go on with another launch.np or elastic.max_np. Its launcher, coordinator and
    ranks each ask, and find the same: all checkpoints in a job's directory have the same lanes.
    """
    is_open = config.data_plan.lanes == 0 and config.resume != "never"
    if not is_open or not TASKS[config.task].keeps_state:
        return config
    saved_lanes = _kept(JobDir.of(config).checkpoints, config)
    if not saved_lanes or saved_lanes == num_lanes(config):
        return config
    return replace(config, data_plan=replace(config.data_plan, lanes=saved_lanes))


def _kept(folder: Path, config: JobConfig) -> int:
    """The lanes of the newest checkpoint whose header can be read; 0 for none of this batch."""
    batch = config.train.batch_size, config.elastic.batching
    for step in reversed(checkpoint_files.steps_in(folder)):
        try:
            with checkpoint_files.path_of(folder, step).open("rb") as stream:
                facts = json.loads(read_metadata(stream)["facts"])
            saved = facts["train.batch_size"], facts.get("elastic.batching", "global")
            # Another batch is refused with the checkpoint, and needs other lanes.
            return int(facts["data_plan.lanes"]) if saved == batch else 0
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Damaged, or just removed: the ranks take the one before, too.
    return 0
