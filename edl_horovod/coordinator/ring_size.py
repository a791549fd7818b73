"""How many ranks the ring of a job may have, and how many workers that takes."""

import logging

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError

__all__ = ["check_change", "check_start", "largest_ring", "num_workers"]

log = logging.getLogger(__name__)


def largest_ring(config: JobConfig) -> int:
    """Most ranks that a job's ring can have: elastic.max_np, and never more than its task's."""
    most = TASKS[config.task].largest_ring(config)
    return min(config.elastic.max_np or most, most)


def num_workers(slots: int, spares: int) -> int:
    """Workers that a host with so many slots has: some stay warm in case another is lost."""
    return slots + spares if slots > 0 else 0


def check_start(config: JobConfig) -> None:
    """Check that every rank gets a part of the work, and tell if the ring cannot reach its maximum.

    Raises:
        ConfigError: More ranks are asked for than can share the task's work.
    """
    task = TASKS[config.task]
    most = task.largest_ring(config)
    if config.launch.np > most:
        raise ConfigError(
            f"launch.np must not be above the number of {task.shared}.",
            received={
                "launch.np": config.launch.np,
                task.shared: most,
                "train.batch_size": config.train.batch_size,
            },
            hint="Ask for fewer ranks. A larger batch size, or data_plan.lanes, gives more lanes; a"
            " training that goes on keeps those of its checkpoint.",
        )
    if config.elastic.max_np is not None and config.elastic.max_np > most:
        log.warning(
            "elastic.max_np=%d, but the ring can have at most %d ranks: one for each of the %s",
            config.elastic.max_np,
            most,
            task.shared,
        )


def check_change(config: JobConfig, num_ranks: int, *, received: str, step: int = 1) -> None:
    """Refuse a number of ranks that a running ring may not have.

    Args:
        config: The job.
        num_ranks: The number of ranks that is asked for.
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
