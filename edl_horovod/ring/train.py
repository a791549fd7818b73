"""The `train` task: steps over the ring, evaluations between them, a trained model at the end."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from edl_horovod import checkpoint_files, trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.data.plan import DataPlan
from edl_horovod.data.stream import StepStream
from edl_horovod.errors import TrainingError
from edl_horovod.events import EventLog
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.ring.checkpoint import OPTIONAL, Checkpoints
from edl_horovod.ring.collectives import catch_failures, sum_grouped
from edl_horovod.ring.evaluate import Evaluator
from edl_horovod.ring.keras_step import KerasTrainer, StepSums
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership import Membership
from edl_horovod.ring.state import RingState
from edl_horovod.ring.world import World

__all__ = ["TrainWork"]

EVENT_SECONDS = 0.2


class TrainWork(Work):
    """Training, warm: data open, model built, steps traced."""

    def __init__(
        self,
        config: JobConfig,
        loaded: LoadedSpec,
        *,
        stream: StepStream,
        plan: DataPlan,
        trainer: KerasTrainer,
        evaluator: Evaluator | None,
        events: EventLog,
    ) -> None:
        """Put the parts together.

        Args:
            config: The job.
            loaded: The user's spec.
            stream: Of the training data.
            plan: Of the training data.
            trainer: Holds model and optimizer.
            evaluator: Of the validation data; None where there is none.
            events: Told of steps and evaluations by the leader.
        """
        variables = trainer.variables
        self._evaluation = None
        if evaluator is not None:
            # The sums of the last evaluation: whoever leads at the end writes its metrics.
            self._evaluation = tf.Variable(np.zeros(evaluator.num_sums))
            variables[f"{OPTIONAL}evaluation"] = self._evaluation
        self._checkpoints = Checkpoints(
            checkpoint_files.folder_of(Path(config.job_dir)),
            variables,
            facts={**plan.facts(), "train.learning_rate": config.train.learning_rate},
            config=config.checkpoint,
            must_exist=config.resume == "must",
            events=events,
        )
        self.state = RingState(list(variables.values()), durable=self._checkpoints)
        self._config = config
        self._loaded = loaded
        self._stream = stream
        self._plan = plan
        self._trainer = trainer
        self._evaluator = evaluator
        self._events = events
        self._told_at = 0.0
        self._told_records = 0
        self._is_leader = False
        all_steps = config.train.epochs * plan.steps_per_epoch
        self.num_steps = min(all_steps, config.train.max_steps or all_steps)

    def records_seen(self) -> int:
        """Records of the steps that are done."""
        return self._plan.records_seen(max(0, self.state.step))

    def run(self, world: World, membership: Membership) -> bool:
        """Train from `state.step` on."""
        self._is_leader = world.is_leader
        lanes = world.lanes(self._plan.num_lanes)
        self._stream.restart(lanes, self.state.step, self.num_steps)
        self._told_at, self._told_records = time.monotonic(), self.records_seen()
        while True:
            if self._is_evaluation_due():
                self._evaluate(world)
            if self.state.step >= self.num_steps:
                return True
            sums = self._trainer.step(
                self._stream.next_batch(),
                wants_change=membership.wants_change(),
                is_alone=world.is_alone,
                salt=lanes.start,
            )
            self._check(sums)
            self.state.commit()
            membership.progress(self.state.step)
            if world.is_leader:
                self._checkpoints.after_step(self.state.step, self.state.evaluated_step)
                self._tell(sums, world)
            if sums.wants_change:
                return False

    def finish(self, world: World) -> dict[str, Any]:
        """Write the trained model; the others wait, and take over if the leader is lost."""
        if world.is_leader:
            # Kept, so that a longer training can go on from here.
            self._save()
            # The launcher saw to it that nothing was in the way, so what is there now is a former
            # leader's, who was lost between writing and saying so.
            trained_model.write(
                Path(self._config.output),
                loaded=self._loaded,
                model=self._trainer.model,
                config=self._config,
                metrics=self._metrics(),
                steps=self.state.step,
                overwrite=True,
            )
            self._checkpoints.wait()
        if not world.is_alone:
            with catch_failures():
                sum_grouped([tf.zeros(())], "edl.finish")  # All ranks: each has done the last step.
        return {
            "steps": self.state.step,
            "metrics": self._metrics(),
            "output": self._config.output,
        }

    def dismissed(self) -> None:
        """Save the last step if this rank led: it may be the whole job that ends."""
        if self._is_leader and self._checkpoints.newest_step() < self.state.step:
            self._save()

    def close(self) -> None:
        """Let a checkpoint be written to its end."""
        self._checkpoints.wait()

    def _save(self) -> None:
        self._checkpoints.save(self.state.step, self.state.evaluated_step)

    def _is_evaluation_due(self) -> bool:
        step = self.state.step
        if self._evaluator is None or step == 0 or self.state.evaluated_step >= step:
            return False
        every = self._config.train.evaluate_steps or self._plan.steps_per_epoch
        return step % every == 0 or step >= self.num_steps

    def _evaluate(self, world: World) -> None:
        assert self._evaluator is not None
        assert self._evaluation is not None
        self._evaluator.restart(world, 0)
        row = self._evaluator.local_sums(self._evaluator.num_steps)
        row = self._evaluator.over_ring(row, world)  # All ranks: the step number decides, as here.
        metrics = self._evaluator.metrics(row)
        self._evaluation.assign(row)
        self.state.evaluated_step = self.state.step
        if world.is_leader:
            self._events.write(
                "evaluation",
                step=self.state.step,
                metrics=metrics,
                examples=int(row[0]),
            )

    def _metrics(self) -> dict[str, float]:
        """Those of the last evaluation; empty where there was none."""
        if self._evaluator is None or self._evaluation is None or self.state.evaluated_step < 0:
            return {}
        row = self._evaluation.numpy()
        return self._evaluator.metrics(row) if row[0] else {}

    def _check(self, sums: StepSums) -> None:
        if not sums.is_finite:
            raise TrainingError(
                f"The loss of step {self.state.step} is not finite. Received: loss={sums.loss}. "
                f"The variables are still those of step {self.state.step - 1}. Lower the "
                "learning rate (train.learning_rate), or look for bad values in the data."
            )

    def _tell(self, sums: StepSums, world: World) -> None:
        now = time.monotonic()
        if now - self._told_at < EVENT_SECONDS and self.state.step < self.num_steps:
            return
        records = self.records_seen()
        rate = (records - self._told_records) / max(now - self._told_at, 1e-9)
        self._events.write(
            "step",
            step=self.state.step,
            total_steps=self.num_steps,
            epoch=(self.state.step - 1) // self._plan.steps_per_epoch,
            loss=sums.loss,
            records_per_second=round(rate, 1),
            records_seen=records,
            size=world.size,
            metrics=sums.metrics,
        )
        self._told_at, self._told_records = now, records
