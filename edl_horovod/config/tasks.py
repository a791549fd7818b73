"""What a job can be for: the table of tasks, read by what submits a job and by its ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_horovod.records.lanes import choose_num_lanes

if TYPE_CHECKING:
    from edl_horovod.config.schema import JobConfig

__all__ = ["TASKS", "Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What settings, launch and coordinator must know of a task."""

    module: str
    """Its `make_warm` makes the work of a rank; only a worker imports it."""
    needs: tuple[str, ...]
    """The settings that must be given."""
    largest_ring: Callable[["JobConfig"], int]
    """The most ranks that can share its work."""
    shared: str
    """What the ranks share out, and `largest_ring` counts."""


def _num_lanes(config: "JobConfig") -> int:
    return choose_num_lanes(config.train.batch_size, config.data_plan.lanes)


def _by_lanes(name: str, *needs: str) -> Task:
    """A task whose ranks share out the lanes of its data."""
    return Task(
        module=f"edl_horovod.tasks.{name}",
        needs=needs,
        largest_ring=_num_lanes,
        shared="lanes",
    )


TASKS = {
    "train": _by_lanes("train", "model_def", "data", "output"),
    "evaluate": _by_lanes("evaluate", "trained_model", "data"),
    "predict": _by_lanes("predict", "trained_model", "data"),
}
