"""What every rank of a ring must agree on: variables and the step number (D7)."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.common.elastic import State

from edl_horovod.ring.collectives import allgather_rows, broadcast_values

__all__ = ["RingState"]

NEVER = -1


class RingState(State):  # type: ignore[misc]  # Horovod ships no types.
    """Variables and counters, with Horovod's commit / restore / sync.

    Variables change only after a step's one collective has succeeded on this rank, and then all of
    them at once. So a rank's state is always that of a whole step: `commit` has nothing to copy and
    `restore` nothing to put back. What is not listed here is lost when a rank is replaced.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Start as a rank that knows nothing yet.

        Args:
            variables: All that changes while the job runs; same order, shapes and types on all
            ranks.
        """
        super().__init__(bcast_object=None, get_rank=None)
        self._variables = list(variables)
        self.step = NEVER
        """Steps of the job that are done; -1 before the first sync."""
        self.evaluated_step = NEVER
        """Step at which the last evaluation was made; -1 for none."""

    def commit(self) -> None:
        """Mark a step as done. Membership travels in the step's collective, not here."""
        self.step += 1

    def save(self) -> None:
        """Keep what a failed step could touch: nothing (see the class)."""

    def restore(self) -> None:
        """Undo what a failed step touched: nothing (see the class)."""

    def sync(self) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it once after each forming of the ring.

        Raises:
            CollectiveFailed: A member was lost meanwhile; form the ring again.
        """
        rows = allgather_rows([self.step, self.evaluated_step], "edl.sync.steps")
        root = max(range(len(rows)), key=lambda rank: (*rows[rank].tolist(), -rank))
        values = [tf.convert_to_tensor(variable) for variable in self._variables]
        for variable, value in zip(
            self._variables, broadcast_values(values, root, "edl.sync"), strict=True
        ):
            variable.assign(value)
        self.step, self.evaluated_step = (int(n) for n in rows[root])
        self.step = max(self.step, 0)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Horovod's own notification; `ring.membership` listens to it instead."""
