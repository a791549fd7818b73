"""The table of tasks, and the ring that a job's settings allow for its task."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_horovod.errors import ConfigError
from edl_horovod.extensions import Table

if TYPE_CHECKING:
    from edl_horovod.config.schema import JobConfig

__all__ = [
    "TASKS",
    "Task",
    "check_change",
    "check_start",
    "evaluation_batch",
    "largest_ring",
    "num_lanes",
    "training_batch",
]

log = logging.getLogger(__name__)

_DEFAULT_MAX_LANES = 32
_LANES_PER_RANK = 4
"""With one lane per rank, a ring that loses one rank would need twice as long for a step."""

_EVENLY_DIVIDED_BY = 12
"""A multiple of this is shared equally by the ranks of each ring of 1, 2, 3, 4, 6 or 12."""


def num_lanes(config: "JobConfig") -> int:
    """The number of lanes of a job; for a resumed job, apply `with_checkpoint_lanes` first.

    Raises:
        ConfigError: data_plan.lanes does not divide train.batch_size.
    """
    setting, num_ranks = config.data_plan.lanes, config.launch.np
    most_ranks = config.elastic.max_np or 0
    if config.elastic.batching == "per_rank":
        return choose_growing_lanes(setting, num_ranks=num_ranks, most_ranks=most_ranks)
    batch = config.train.batch_size
    if config.train.local.steps:
        return config.train.local.replicas
    if config.federated.rounds:
        return 1
    return choose_num_lanes(batch, setting, num_ranks=num_ranks, most_ranks=most_ranks)


def choose_num_lanes(global_batch: int, requested: int, *, num_ranks: int, most_ranks: int) -> int:
    """Choose the number of lanes of a job, a divisor of the global batch.

    The default is the largest divisor that does not exceed the maximum of 32, four lanes per rank,
    and `most_ranks`; or, if that divisor is smaller than the number of ranks, the smallest divisor
    that is not. A ring never has more ranks than the global batch has records.

    Args:
        global_batch: Records of one step over the whole ring.
        requested: The user's setting; 0 for the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The largest number of ranks later in the job; 0 if it is unlimited.

    Raises:
        ConfigError: `requested` does not divide the global batch.
    """
    divisors = _divisors(global_batch)
    if requested == 0:
        max_lanes = max(_DEFAULT_MAX_LANES, _LANES_PER_RANK * num_ranks, most_ranks)
        sufficient = [divisor for divisor in divisors if divisor >= max(num_ranks, most_ranks)] or [
            global_batch
        ]
        return max(
            (divisor for divisor in sufficient if divisor <= max_lanes), default=sufficient[0]
        )
    if global_batch % requested:
        raise ConfigError(
            "data_plan.lanes must divide train.batch_size, so that a step takes the same number of"
            " records from every lane.",
            received={"data_plan.lanes": requested, "train.batch_size": global_batch},
            hint=f"Use one of {', '.join(map(str, divisors[-12:]))}, or another batch size.",
        )
    return requested


def choose_growing_lanes(requested: int, *, num_ranks: int, most_ranks: int) -> int:
    """Choose the number of lanes of a job whose global batch grows with its ring.

    Any number is allowed. If the size of the ring divides it, each rank gets the same number of
    records in each full step. The default is divisible by `num_ranks` and by 1, 2, 3, 4, 6 and 12.

    Args:
        requested: The user's setting; 0 for the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The largest number of ranks later in the job; 0 if it is unlimited.
    """
    min_lanes = max(_DEFAULT_MAX_LANES, _LANES_PER_RANK * num_ranks, most_ranks)
    unit = math.lcm(num_ranks, _EVENLY_DIVIDED_BY)
    return requested or -(-min_lanes // unit) * unit


def _divisors(number: int) -> list[int]:
    small_divisors = [
        divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0
    ]
    return sorted({*small_divisors, *(number // divisor for divisor in small_divisors)})


def training_batch(config: "JobConfig") -> dict[str, int]:
    """The records of a training step or round, as keywords of `records.plan.DataPlan`."""
    if config.elastic.batching == "per_rank":
        return {"rank_batch": config.train.batch_size}
    batch, local = config.train.batch_size, config.train.local
    warmup = {"warmup_steps": local.warmup_steps, "warmup_batch": batch}
    return {"global_batch": batch * max(1, local.steps), **warmup}


def evaluation_batch(config: "JobConfig") -> int:
    """The records of a step of an evaluation or a prediction, over the whole ring.

    If training steps grow with the ring, this is about the size of those of the initial ring.
    """
    if config.elastic.batching == "global":
        return config.train.batch_size
    lanes = num_lanes(config)
    return lanes * max(1, config.train.batch_size * config.launch.np // lanes)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The facts about a task that settings, launch and coordinator need."""

    summary: str
    """What `edl TASK` does."""
    module: str
    """The module whose `make_warm` creates the work of a rank; only a worker imports it. Empty for
    a task without ranks of its own."""
    needs: tuple[str, ...]
    """The settings that the task requires."""
    keeps_state: bool = False
    """Whether it has checkpoints from which it can continue; other tasks start over."""
    writes_one_file: bool = False
    """Whether `output` may be one file of records."""
    largest_ring: Callable[["JobConfig"], int] = num_lanes
    """Computes the largest number of ranks that can share its work."""
    shared: str = "lanes"
    """The units that the ranks divide among them, which `largest_ring` counts."""

    @property
    def takes_zoo(self) -> bool:
        """Whether its model comes from a model zoo, and not from a trained model."""
        return "model_def" in self.needs


TASKS: Table[Task] = Table(
    "tasks",
    {
        "train": Task(
            summary="Train a model of a model zoo on a ring of workers.",
            module="edl_horovod.tasks.train",
            needs=("model_def", "data", "output"),
            keeps_state=True,
        ),
        "evaluate": Task(
            summary="Compute the metrics of a trained model.",
            module="edl_horovod.tasks.evaluate",
            needs=("trained_model", "data"),
        ),
        "predict": Task(
            summary="Write what a trained model predicts.",
            module="edl_horovod.tasks.predict",
            needs=("trained_model", "data"),
            writes_one_file=True,
        ),
        "federate": Task(
            summary="Coordinate a federated training, whose parties join by edl party.",
            module="",
            needs=("job_dir",),
            largest_ring=lambda config: len(config.federated.parties),
            shared="federated.parties",
        ),
    },
)


def largest_ring(config: "JobConfig") -> int:
    """The most ranks that a job's ring can have: elastic.max_np, or less if its task has less."""
    bound = TASKS[config.task].largest_ring(config)
    return min(config.elastic.max_np or bound, bound)


def check_start(config: "JobConfig") -> None:
    """Check that every rank gets a part of the work; warn if elastic.max_np cannot be reached.

    Raises:
        ConfigError: More ranks are requested than can share the task's work.
    """
    task = TASKS[config.task]
    most = task.largest_ring(config)
    if config.launch.np > most:
        more = "A larger batch size, or data_plan.lanes, gives more lanes"
        if config.train.local.steps:
            more = "A larger train.local.replicas, each of which has a lane, allows more"
        raise ConfigError(
            f"launch.np must not be above the number of {task.shared}.",
            received={
                "launch.np": config.launch.np,
                task.shared: most,
                "train.batch_size": config.train.batch_size,
            },
            hint=f"Request fewer ranks. {more}; a resumed training keeps the lanes of its"
            " checkpoint.",
        )
    if config.elastic.max_np is not None and config.elastic.max_np > most:
        log.warning(
            "elastic.max_np=%d, but the ring can have at most %d ranks: one for each of the %s",
            config.elastic.max_np,
            most,
            task.shared,
        )


def check_change(config: "JobConfig", num_ranks: int, *, received: str, step: int = 1) -> None:
    """Check that a running ring may have a number of ranks.

    Args:
        config: The job.
        num_ranks: The requested number of ranks.
        received: What the user gave, for the message.
        step: The number of ranks must be a multiple of it.

    Raises:
        ConfigError: The ring may not have that size.
    """
    least, most = config.elastic.min_np, largest_ring(config)
    if not least <= num_ranks <= most or num_ranks % step:
        multiple = f", a multiple of the {step} slots of a pod" if step > 1 else ""
        raise ConfigError(
            f"The ring must keep between elastic.min_np={least} and {most} ranks (elastic.max_np, "
            f"and never more than there are {TASKS[config.task].shared}){multiple}.",
            received=received,
        )
