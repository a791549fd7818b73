"""Evaluation of a PyTorch model: loss and metrics of a batch, as sums."""

import functools

import numpy as np
import torch

from edl_horovod.frameworks.torch.buffers import unchanged
from edl_horovod.frameworks.torch.module_loss import find_module_loss
from edl_horovod.frameworks.torch.objective import Objective, metric_means
from edl_horovod.frameworks.torch.running import ModuleRunner
from edl_horovod.frameworks.values import Batch, EvaluationSums
from edl_horovod.models.calling import user_code
from edl_horovod.spec import Mode

__all__ = ["TorchEvaluation"]


class TorchEvaluation:
    """Implements `models.Evaluation`."""

    def __init__(self, runner: ModuleRunner, example: Batch) -> None:
        """Test the evaluation on the sample examples.

        Raises:
            UserCodeError: Loss or metrics cannot be computed for these examples, or not be summed.
        """
        self._runner = runner
        self._module_loss = find_module_loss(runner.loaded, runner.module, Mode.EVALUATION)
        self._objective = Objective(
            runner.loaded, runner.module, Mode.EVALUATION, module_loss=self._module_loss
        )
        self._doing = f"The evaluation of {runner.loaded.label}"
        example = runner.batch_to_device(example)
        with unchanged(runner.module):
            rerun = functools.partial(self._outputs, keeps_graph=True)
            self._objective.begin(
                example, rerun(example), None if self._module_loss is None else rerun
            )
        self.names = ["loss", *self._objective.metric_names]
        self.zeros = EvaluationSums.zeros(self._objective.num_metric_sums)

    def sums(self, batch: Batch) -> EvaluationSums:
        """Return the sums of a batch."""
        batch = self._runner.batch_to_device(batch)
        outputs = self._outputs(batch, keeps_graph=self._objective.needs_graph)
        with torch.no_grad():
            outcome = self._objective.of_batch(batch, outputs)
        return EvaluationSums(
            batch.num_examples,
            outcome.loss_sum,
            outcome.loss_weight,
            np.array(outcome.metric_sums),
        )

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Return loss and metrics by name."""
        means = [sums.mean_loss, *metric_means(sums.metrics)]
        return dict(zip(self.names, map(float, means), strict=True))

    def _outputs(self, batch: Batch, *, keeps_graph: bool) -> object:
        runner = self._runner
        runner.module.eval()
        with (
            user_code(self._doing, root=runner.loaded.zoo),
            self._objective.recording(),
            runner.evaluating(keeps_graph=keeps_graph),
        ):
            return runner.outputs(batch, self._module_loss)
