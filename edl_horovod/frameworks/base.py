"""The interface between a framework and the rest: ring, tasks and trained models (DESIGN D16).

Code outside this package sees arrays and names. Tensors and automatic differentiation stay in the
package of each framework.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import JobConfig, Precision
from edl_horovod.frameworks.batches import StepBatches
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.values import (
    Batch,
    EvaluationSums,
    Output,
    Rows,
    StateGroup,
    StepSums,
    Variable,
)
from edl_horovod.models.parts import PlainModels
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import Mode

__all__ = [
    "CollectiveFailed",
    "Collectives",
    "Evaluation",
    "Framework",
    "Model",
    "OuterOptimizer",
    "Prediction",
    "Step",
]

if TYPE_CHECKING:
    from edl_horovod.frameworks.horovod import Horovod


class CollectiveFailed(Exception):
    """A collective did not complete: a member died, hung or left. The ring must re-form."""

    def __init__(self, message: str, *, unreached: Iterable[str] = ()) -> None:
        """Create the error.

        Args:
            message: The cause, for the log.
            unreached: IP addresses, or names of parties, that this rank could not connect to.
        """
        super().__init__(message)
        self.unreached = frozenset(unreached)


class Collectives(Protocol):
    """Collective operations: all ranks of a ring call the same ones in the same order.

    Each raises `CollectiveFailed` if a member is lost during the call. Ranks pair their calls by
    name. `blank_like` and `checksum` are local.
    """

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Return the sum of the ranks' arrays, which have the same shape and type.

        Sums of integers wrap around: those of 32 bits are modulo 2^32.
        """

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers from each rank; shape (size, len(row)), in rank order."""

    def exchange(self, rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Send a row of bytes to each rank, and return those received, both in rank order.

        Args:
            rows: Shape (size, bytes), the same on all ranks.
            name: Pairs the calls of the ranks.
        """

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Set every rank's variables to the values on the rank `root`.

        They are sent in packs, so the extra memory is about that of the largest variable. The
        root's variables never change. If a member is lost, the other ranks may have received only
        some of the values.
        """

    def broadcast_rows(self, rows: Sequence[Rows], number: int, root: int, name: str) -> int:
        """Set these rows on every rank to the root's values; returns the root's `number`.

        Rows that already have the same bits are not written to. The root's rows never change. If a
        member is lost, no rank's rows change.
        """

    def blank_like(self, variables: Sequence[Variable]) -> Sequence[Variable]:
        """Create variables of the same shapes and types with arbitrary values; not a collective."""

    def checksum(self, variable: Variable) -> int:
        """Return a 63-bit checksum of a variable's value, without a copy; not a collective."""


class Evaluation(Protocol):
    """Loss and metrics of a model, as sums that can be added over batches and ranks."""

    zeros: EvaluationSums
    """The sums of an empty batch."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the loss and the metrics, `loss` first."""

    def sums(self, batch: Batch) -> EvaluationSums:
        """Return the sums of a batch.

        Raises:
            UserCodeError: The model, the loss or a metric failed, for example on a shape.
        """

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Return loss and metrics by name; the sums must hold at least one example."""


class Prediction(Protocol):
    """Computes a model's outputs."""

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch's features, in the structure that it returns."""

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Return such outputs as arrays by name."""


class Model(Protocol):
    """A user's model, built for batches of one structure."""

    @property
    def weights(self) -> Mapping[str, Variable]:
        """The model's weights by their names in a trained model's files."""

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare the evaluation of batches of this structure.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare the prediction for batches of this structure.

        Raises:
            UserCodeError: The model failed.
        """

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Load the weights from a file in the framework's own format.

        Args:
            file: Weights alone, or a checkpoint of another training.
            is_trusted: Whether code that the file names may run.

        Raises:
            ConfigError: The framework does not read such files.
            UserCodeError: The file has another format, or its weights do not fit this model.
        """

    def save(self, folder: Path) -> None:
        """Write the model for programs that do not have edl_horovod."""

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write the model for programs that do not have the user's code, in one or both formats.

        Raises:
            UserCodeError: The model cannot be exported; no incomplete file is left.
        """


class OuterOptimizer(Protocol):
    """Applies the mean changes of replicas to the model, at the ends of local rounds."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Its state, by name."""

    def apply(self, changes: Mapping[str, NDArray[Any]]) -> None:
        """Change the model's trained variables.

        Args:
            changes: The mean change of some of `Step.trained`, by name, as real numbers of at least
                32 bits. The others stay as they are.
        """


class Step(Protocol):
    """A training step: the sums of a local batch, reduced over the ring, and then applied.

    It is a single call, so that a framework can reduce some gradients while it computes others.
    """

    @property
    def model(self) -> Model:
        """The model that is trained."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All variables that a step changes, by name, in the same order on all ranks."""

    @property
    def model_variables(self) -> Mapping[str, Variable]:
        """The model's variables among them."""

    @property
    def trained(self) -> Sequence[str]:
        """The names of the model's variables that the optimizer changes."""

    @property
    def slots(self) -> Sequence[str]:
        """The names of the variables that the optimizer keeps for these, such as momenta."""

    def optimizer_state(self) -> Sequence[str]:
        """The names of the variables that have their first values in a new optimizer.

        They are `slots` and, for instance, its number of steps, but neither learning rates nor what
        schedules count.

        Raises:
            UserCodeError: A schedule of the learning rate needs the optimizer's number of steps.
        """

    @property
    def groups(self) -> Sequence[StateGroup]:
        """Groups of variables that can be sent to a joining rank one by one while steps go on.

        A rank without examples that has a whole group, and all variables that are in no group,
        updates this group exactly as the other ranks do. Empty if the optimizer does not allow
        this.
        """

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring and update the variables if its loss is finite.

        All ranks call it for every step. No variable changes before all sums are reduced.

        Args:
            batch: This rank's examples; None if it has none.
            wants_change: Whether this rank knows that the ring has to change.
            is_alone: Whether the ring has one rank, so that there is nothing to reduce.
            salt: Part of the seed of this rank's random numbers (dropout), different on each rank.

        Raises:
            CollectiveFailed: A member was lost; the variables are untouched.
            UserCodeError: The model, the loss or a metric failed, for example on a shape.
        """

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the following steps by `factor`.

        The rate that the user's callbacks and the ring's state see does not change. The step must
        have been created with `scales_learning_rate` (`Framework.step`).
        """

    def outer_optimizer(self, learning_rate: float, momentum: float) -> OuterOptimizer:
        """Create the spec's outer optimizer; without one, SGD with Nesterov momentum.

        Without momentum it is plain SGD.

        Raises:
            UserCodeError: `create_outer_optimizer` raised or returned something unusable.
        """

    def begin_round(self) -> None:
        """Let the following steps of a round pull towards the present weights (FedProx).

        Without `federated.proximal_mu` this does nothing.
        """

    def finalize(self) -> None:
        """Set the model to its final values if the optimizer averages them.

        To be called after the last step; idempotent.
        """

    def rehearse(self, batch: Batch) -> None:
        """Run a step without effect and without a ring, so that the first real step is fast."""

    def is_waiting(self) -> bool:
        """Whether this rank has computed its part and waits for the others. Thread-safe."""

    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in a step that has just failed.

        It is 0 if this rank had not computed its part.
        """

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> EpochCallbacks | None:
        """Create the user's callbacks; None if there are none.

        `steps_per_epoch` is None if it depends on the ring. `per_step` is the setting
        `callbacks.per_step`.

        Raises:
            UserCodeError: A callback cannot work on a ring.
        """


class Framework(Protocol):
    """A deep-learning framework; `config.frameworks.FRAMEWORKS` lists them by name."""

    name: str
    """The name in the table of frameworks."""
    horovod: "Horovod"
    """The framework's half of Horovod, which forms rings."""
    plain_models: PlainModels
    """The kinds of models without a spec that the framework supports."""

    @property
    def collectives(self) -> Collectives:
        """The collective operations of a ring."""

    def begin(self, *, slot: int, seed: int) -> int:
        """Select the device of a slot and seed the random numbers, before user code runs.

        Returns the number of visible GPUs.

        Raises:
            ConfigError: Slots share a GPU, and this Horovod reduces by NCCL.
        """

    def use_precision(self, precision: Precision) -> None:
        """Set the precision of the training, `train.precision`, before user code runs."""

    def batches(
        self,
        source: RecordSource,
        plan: DataPlan,
        loaded: LoadedSpec,
        mode: Mode,
        *,
        prefetch: int,
        processes: int = 0,
    ) -> StepBatches:
        """Make batches from records by the user's `create_dataset`.

        Args:
            source: Reads the records.
            plan: Says which records belong to a step.
            loaded: The user's spec.
            mode: Passed to `create_dataset`.
            prefetch: The number of steps that are prepared ahead.
            processes: The number of this rank's processes that run `create_dataset`; 0 for a
                thread.

        Raises:
            UserCodeError: `create_dataset` raised, or returned something unusable.
        """

    def examples(
        self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec
    ) -> AbstractContextManager[Any]:
        """All training examples in batches, in the form that the framework's users iterate over.

        An exception that a `DataError` caused leaves the context as that `DataError`.
        """

    def model(self, loaded: LoadedSpec, element_spec: Any) -> Model:
        """Build the user's model for batches of this structure.

        Raises:
            UserCodeError: `create_model` raised, or the model fails on these features.
        """

    def step(
        self,
        loaded: LoadedSpec,
        element_spec: Any,
        config: JobConfig,
        *,
        scales_learning_rate: bool = False,
    ) -> Step:
        """Build the user's model and optimizer, and the step that trains them.

        `scales_learning_rate` must be true if `Step.scale_learning_rate` will be called.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
