"""Implements `base.Framework` for PyTorch."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from edl_horovod.config.schema import JobConfig, Precision
from edl_horovod.frameworks.base import Collectives, Model, Step
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.phases import PhasedStep, has_phases, parts_of
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.torch.batches import AllExamples, TorchBatches
from edl_horovod.frameworks.torch.model import TorchModel, require_exporters
from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
from edl_horovod.frameworks.torch.running import ComputeOptions, require_compiler
from edl_horovod.frameworks.torch.step import (
    ReducerMaker,
    SharedModel,
    TorchStep,
    make_callbacks,
)
from edl_horovod.frameworks.torch.structures import take_examples
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.source import RecordSource

_MIXED_DTYPES = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


class TorchFramework:
    """The framework PyTorch."""

    name = "torch"
    plain_models = PLAIN_MODELS
    batches = TorchBatches

    def __init__(
        self, horovod: Horovod, collectives: Collectives, make_reducer: ReducerMaker
    ) -> None:
        """Create the framework; tests pass other collectives.

        Args:
            horovod: PyTorch's half of Horovod.
            collectives: The collective operations of a ring.
            make_reducer: Creates the reducer for a training's gradients, from its parameters by
                name, how to reduce them, and the names of those with sparse gradients.
        """
        self.horovod, self.collectives = horovod, collectives
        self._make_reducer = make_reducer
        self._compute = ComputeOptions(torch.device("cpu"))
        self._seed = 0

    def begin(self, *, slot: int, seed: int) -> int:
        """Select a GPU for the slot, and seed all generators."""
        num_gpus: int = torch.cuda.device_count()
        if num_gpus:
            self.horovod.require_gpu_of_its_own(slot, num_gpus)
            torch.cuda.set_device(slot % num_gpus)
            self._compute = ComputeOptions(torch.device("cuda", slot % num_gpus))
        torch.manual_seed(seed)
        self._seed = seed
        return num_gpus

    def use_precision(self, precision: Precision) -> None:
        """Set the precision of models that are created later; mixed ones use autocast."""
        dtype = _MIXED_DTYPES.get(precision)
        self._compute = ComputeOptions(self._compute.device, dtype)
        # Attention's fast path in evaluation ignores autocast on a CPU, and then mixes types.
        torch.backends.mha.set_fastpath_enabled(dtype is None)

    def examples(
        self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec
    ) -> AbstractContextManager[AllExamples]:
        """All training examples in batches, which can be iterated over repeatedly."""
        return nullcontext(AllExamples(source, plan, loaded))

    def model(self, loaded: LoadedSpec, element_spec: Any) -> Model:
        """Build the user's model."""
        return TorchModel(loaded, element_spec, self._compute)

    def step(
        self,
        loaded: LoadedSpec,
        element_spec: Any,
        config: JobConfig,
        *,
        scales_learning_rate: bool = False,
    ) -> Step:
        """Build the user's model and optimizer, and the step that trains them.

        `scales_learning_rate` is not needed here: the rate is a plain number of the optimizer.
        """
        require_exporters(config.train)
        if config.train.compile:
            require_compiler()
        options = StepOptions.of(config)
        make_step = functools.partial(
            TorchStep,
            loaded,
            element_spec,
            compute=self._compute,
            learning_rate=config.train.learning_rate,
            make_reducer=self._make_reducer,
            seed=self._seed,
        )
        if not has_phases(loaded):
            return make_step(options=options)
        shared = SharedModel.build(loaded, element_spec, self._compute, options)
        module = shared.model.runner.module
        parts = parts_of(loaded, module, config, list(module.parameters()))
        steps = [
            (part.phase, make_step(options=part.options, shared=shared, part=part))
            for part in parts
        ]
        optimizers = {phase.name: step.optimizer for phase, step in steps}
        callbacks = functools.partial(make_callbacks, [step for _, step in steps], optimizers)
        return PhasedStep(
            loaded, steps, seed=self._seed, take=take_examples, make_callbacks=callbacks
        )
