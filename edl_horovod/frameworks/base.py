"""What the ring, the tasks and a trained model need of a framework (DESIGN D16).

They know arrays and names. What a framework computes with, and how, stays in its own folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import TrainConfig
from edl_horovod.frameworks.models import Model
from edl_horovod.frameworks.values import Batch, Rows, StateGroup, StepSums, Variable
from edl_horovod.models.plain_models import PlainModels
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan, Ids
from edl_horovod.records.source import RecordSource
from edl_horovod.records.spans import StepSpans
from edl_horovod.spec import Mode

if TYPE_CHECKING:
    from edl_horovod.frameworks.horovod import Horovod

__all__ = [
    "Batches",
    "Callbacks",
    "CollectiveFailed",
    "Collectives",
    "Framework",
    "Step",
]


class CollectiveFailed(Exception):
    """A collective did not complete: a member died, hung or left. The ring must form again."""

    def __init__(self, message: str, *, unreached: Iterable[str] = ()) -> None:
        """Describe the failure.

        Args:
            message: For people.
            unreached: IP addresses of members that this rank could not connect to.
        """
        super().__init__(message)
        self.unreached = frozenset(unreached)


class Collectives(Protocol):
    """What all ranks of a ring do together: all call the same ones in the same order.

    Each raises `CollectiveFailed` where a member is lost meanwhile. The names pair the calls.
    """

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Add the ranks' arrays, which have the same shape and type."""

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers of each rank; shape (size, len(row)), in rank order."""

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Give every rank's variables the values of those of the rank `root`, some at a time.

        They take little memory beyond the largest of them. Those of the root never change; where a
        member is lost, those of other ranks may be partly the root's.
        """

    def broadcast_rows(self, rows: Sequence[Rows], number: int, root: int, name: str) -> int:
        """Give every rank these rows of the root's variables; returns the root's number.

        Rows that have the same bits are not written to. Those of the root never change, and where a
        member is lost, no other rank's do.
        """

    def blank_like(self, variables: Sequence[Variable]) -> Sequence[Variable]:
        """New variables of the same shapes and types, with any values. This is no collective."""

    def checksum(self, variable: Variable) -> int:
        """A number of 63 bits that is the same where a variable has the same bits.

        This is no collective, and it makes no copy of the value.
        """


class Batches(Protocol):
    """Examples of the records of consecutive steps on this rank's lanes."""

    @property
    def element_spec(self) -> Any:
        """What a batch looks like, as the framework describes it to its own parts."""

    @property
    def record_ids(self) -> Ids:
        """Ids of the records of the last `next_batch`, also of those that gave no example."""

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Read these lanes from `first_step` of the job up to the step before `last_step`.

        Steps count from 0 over all epochs. `spans` says what each takes; None where the plan says
        it, with a fixed global batch.
        """

    def expect(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Begin in a thread a `restart` that is likely to follow with just these arguments."""

    def next_batch(self) -> Batch | None:
        """The examples of the next step; None where this rank has none in it.

        Raises:
            DataError: A record could not be read or parsed.
        """

    def try_first(self) -> Batch | None:
        """Make the examples of the first lane's first records, to see whether that works.

        None where these records gave no example.

        Raises:
            DataError: It does not.
        """

    def close(self) -> None:
        """End what reads ahead."""


class Callbacks(Protocol):
    """The user's callbacks of a training, which the leader runs between epochs."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """What the ring's state must hold of them, by name."""

    @property
    def is_over(self) -> bool:
        """Whether one of them has ended the training."""

    @property
    def max_steps(self) -> int | None:
        """The fewest steps after which one of them ends the training; None for no bound."""

    def before_step(self, step: int, *, batch: int | None) -> None:
        """Prepare a step of the job, counted from 0; all ranks do, and alike.

        `batch` is on the leader the step's number in its epoch, counted from 0; else None.
        """

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        """Take note of a step's numbers; all ranks do. `batch` is as for `before_step`."""

    def begin_epoch(self, epoch: int) -> None:
        """Call them as an epoch begins, counted from 0, on the leader; then the ring syncs."""

    def end_epoch(self, epoch: int, evaluation: Mapping[str, float]) -> None:
        """Call them at an epoch's end, on the leader; then the ring syncs."""

    def end(self) -> None:
        """Call them at the training's end, on the leader, before the model is written."""


class Step(Protocol):
    """A training's step: local sums of a batch, reduced over the ring, and then applied.

    It is one call, so that a framework may reduce some sums while it makes others.
    """

    @property
    def model(self) -> Model:
        """What is trained."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All that it changes, each once, by name and in the same order on all ranks."""

    @property
    def model_variables(self) -> Mapping[str, Variable]:
        """Those of the model alone."""

    @property
    def groups(self) -> Sequence[StateGroup]:
        """Variables that may reach a rank one group after the other, while steps go on.

        A rank without examples that has all of a group, and the variables of no group, keeps it
        just as the others have it. Empty where that cannot be said of any variable.
        """

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring and change the variables, if its loss is finite.

        All ranks call it for every step. Nothing changes before all sums are reduced.

        Args:
            batch: This rank's examples; None where it has none.
            wants_change: This rank knows that the ring is to change.
            is_alone: The ring has one rank, so there is nothing to reduce.
            salt: Sets this rank's random numbers (dropout) apart from those of the others.

        Raises:
            CollectiveFailed: A member was lost; the variables are untouched.
            UserCodeError: Shapes in the model, the loss or a metric do not fit.
        """

    def scale_learning_rate(self, factor: float) -> None:
        """Make the steps that follow as if the learning rate were so many times its value.

        Its value stays what it is, for the user's callbacks and the ring's state. Only of a step
        that was made so that it can (`Framework.step`).
        """

    def finalize(self) -> None:
        """Give the model the values that it is to be kept with, where the optimizer averages them.

        After the last step; twice is as good as once.
        """

    def rehearse(self, batch: Batch) -> None:
        """Run it without any effect and without a ring, so that the first true ones are quick."""

    def has_come(self) -> bool:
        """Whether this rank's sums are made, so that it waits for the others; any thread asks."""

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> Callbacks | None:
        """Make the user's callbacks; None where there are none.

        The steps are None where their number depends on the ring. `per_step` is the setting.

        Raises:
            UserCodeError: One of them cannot work on a ring.
        """


class Framework(Protocol):
    """What a model is written in; `config.frameworks.FRAMEWORKS` finds it by its name."""

    @property
    def name(self) -> str:
        """Its name, which is that of its package, too."""

    @property
    def horovod(self) -> "Horovod":
        """Its half of Horovod, which forms rings."""

    @property
    def collectives(self) -> Collectives:
        """The operations of a ring."""

    @property
    def plain_models(self) -> PlainModels:
        """The models without a spec that it knows."""

    def begin(self, *, slot: int, seed: int) -> int:
        """Take the device of a slot and seed the random numbers, before user code runs.

        Returns how many GPUs it sees here.
        """

    def use_precision(self, precision: str) -> None:
        """Compute a training in this precision, `train.precision`, before user code runs."""

    def batches(
        self,
        source: RecordSource,
        plan: DataPlan,
        loaded: LoadedSpec,
        mode: Mode,
        *,
        prefetch: int,
        processes: int = 0,
    ) -> Batches:
        """Make examples of records by the user's `create_dataset`.

        Args:
            source: Reads the records.
            plan: Says which records a step holds.
            loaded: The user's spec.
            mode: Handed to `create_dataset`.
            prefetch: Steps made ready ahead.
            processes: Of this rank, to run `create_dataset`; 0 for a thread of it.

        Raises:
            UserCodeError: `create_dataset` raised, or returned something unusable.
        """

    def examples(
        self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec
    ) -> AbstractContextManager[Any]:
        """All training examples in batches, as the framework's own users go through them.

        An exception leaves the context as the `DataError` that made it, where there is one.
        """

    def model(self, loaded: LoadedSpec, element_spec: Any) -> Model:
        """Build the user's model for batches of this kind.

        Raises:
            UserCodeError: `create_model` raised, or the model refuses these features.
        """

    def step(
        self,
        loaded: LoadedSpec,
        element_spec: Any,
        config: TrainConfig,
        *,
        scales_learning_rate: bool = False,
    ) -> Step:
        """Build the user's model and optimizer, and the step that trains them, as `config` says.

        `scales_learning_rate` says whether `Step.scale_learning_rate` will be called.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
