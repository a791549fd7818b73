"""The `train` task: steps over the ring, evaluations between them, a trained model at the end."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import TrainingError
from edl_horovod.frameworks.base import Batches, Callbacks, Framework, Step, Variable
from edl_horovod.frameworks.values import Array, EvaluationSums, StepSums
from edl_horovod.frameworks.world import World
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EvaluationEvent, EventLog, LogEvent, StepEvent
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.models import zoo_files
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.checkpoint import OPTIONAL, Checkpoints
from edl_horovod.ring.early_stopping import EarlyStopping
from edl_horovod.ring.ledger import RingLedger, open_ledger
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import NEVER, Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import Evaluator
from edl_horovod.tasks.opening import open_data

__all__ = ["TrainCounters", "TrainWork", "make_warm"]

EVENT_SECONDS = 0.2


@dataclass
class TrainCounters(Counters):
    """How far a training is."""

    evaluated_step: int = NEVER
    """Step of the last evaluation."""
    epoch_ended_step: int = NEVER
    """Step at which the callbacks were last told that an epoch ended."""
    epoch_begun_step: int = NEVER
    """Step at which the callbacks were last told that an epoch begins."""


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    identity: WorkerIdentity,
    stack: contextlib.ExitStack,
) -> Work:
    """Open the data, load and build the model, rehearse the step; see `tasks.warm`."""
    # Only here: a trained model is evaluated and predicted with in float32.
    framework.use_precision(config.train.precision)
    loaded = load_spec(
        config.model_zoo,
        config.model_def,
        params=config.params,
        context={"worker_id": str(identity.slot), "master_ip": identity.coordinator_host},
        overrides=Overrides.of(config),
        plain_models=framework.plain_models,
    )
    zoo_files.sources(loaded.zoo)  # What the trained model cannot carry is told before training.
    data = open_data(config, framework, config.data, loaded, Mode.TRAINING, stack)
    step = framework.step(loaded, data.batches.element_spec, config.train)
    if data.first is not None:
        step.rehearse(data.first)
    evaluator = None
    if config.validation_data:
        held_out = open_data(
            config, framework, config.validation_data, loaded, Mode.EVALUATION, stack
        )
        evaluation = step.model.evaluation(held_out.batches.element_spec)
        evaluator = Evaluator(evaluation, held_out.batches, held_out.plan, framework.collectives)
    if config.init_from:
        files = trained_model.read(Path(config.init_from))
        with trained_model.versions_told(files):
            trained_model.restore_weights(files, step.model.weights)
    ledger = None
    if config.debug.ledger:
        ledger = open_ledger(JobDir.of(config).ledger, identity, framework.collectives)
        stack.callback(ledger.close)
    work = TrainWork(
        config,
        framework,
        loaded,
        batches=data.batches,
        plan=data.plan,
        step=step,
        evaluator=evaluator,
        events=events,
        ledger=ledger,
    )
    stack.callback(work.close)
    # A newcomer reads it while the others train; what they have done since, they give it.
    work.state.recover()
    return work


class TrainWork(Work):
    """Training, warm: data open, model built, steps traced."""

    def __init__(
        self,
        config: JobConfig,
        framework: Framework,
        loaded: LoadedSpec,
        *,
        batches: Batches,
        plan: DataPlan,
        step: Step,
        evaluator: Evaluator | None,
        events: EventLog,
        ledger: RingLedger | None,
    ) -> None:
        """Put the parts together.

        Args:
            config: The job.
            framework: What the model is written in.
            loaded: The user's spec.
            batches: Of the training data.
            plan: Of the training data.
            step: Holds model and optimizer.
            evaluator: Of the validation data; None where there is none.
            events: Told of steps and evaluations by the leader.
            ledger: Told of each record; None unless `debug.ledger`.
        """
        own: dict[str, Variable] = {}
        self._evaluation = None
        if evaluator is not None:
            # The sums of the last evaluation: whoever leads at the end writes its metrics.
            self._evaluation = own["evaluation"] = Array(evaluator.zeros.vector)
        self._stopping = _early_stopping(config, step, evaluator)
        self._callbacks = step.callbacks(
            num_epochs=config.train.epochs, steps_per_epoch=plan.steps_per_epoch
        )
        self.num_steps = _num_steps(config, plan, self._callbacks)
        for part in (self._stopping, self._callbacks):
            own |= part.variables if part is not None else {}
        variables: dict[str, Variable] = {**step.variables}
        variables |= {f"{OPTIONAL}{name}": variable for name, variable in own.items()}
        self._checkpoints = Checkpoints(
            JobDir.of(config).checkpoints,
            variables,
            facts={**plan.facts(), "train.learning_rate": config.train.learning_rate},
            config=config.checkpoint,
            must_exist=config.resume == "must",
            events=events,
        )
        self._counters = TrainCounters()
        self.state = RingState(
            variables, self._counters, framework.collectives, durable=self._checkpoints
        )
        self._framework = framework
        self._config = config
        self._loaded = loaded
        self._batches = batches
        self._plan = plan
        self._step = step
        self._evaluator = evaluator
        self._events = events
        self._ledger = ledger
        self._told_at = 0.0
        self._told_records = 0
        self._is_ring_told = False
        self._began_at = -1
        self._may_be_last = False

    def records_seen(self) -> int:
        """Records of the steps that are done."""
        return self._plan.records_seen(max(0, self.state.step))

    def expect(self, world: World, step: int) -> None:
        """Begin to read and to make examples while the ring forms."""
        self._batches.expect(world.lanes(self._plan.num_lanes), step, self.num_steps)

    def run(self, world: World, membership: Membership) -> bool:
        """Train from `state.step` on."""
        # Until it is left in good order: with a ring that breaks its leader may be lost.
        self._may_be_last = True
        if self._ledger is None:
            is_done = self._train(world, membership)
        else:
            is_done = self._ledger.in_ring(
                world, self.state, lambda: self._train(world, membership)
            )
        self._may_be_last = world.is_leader
        return is_done

    def _train(self, world: World, membership: Membership) -> bool:
        lanes = world.lanes(self._plan.num_lanes)
        self._batches.restart(lanes, self.state.step, self.num_steps)
        self._told_at, self._told_records = time.monotonic(), self.records_seen()
        self._is_ring_told = False
        self._began_at = self.state.step
        while True:
            if self._is_evaluation_due():
                self._evaluate(world, membership)
            if self._callbacks is not None and self._are_calls_due():
                membership.doing("unwatched", f"callbacks after step {self.state.step}")
                self._call(self._callbacks, world)
            if self._is_over():
                return True
            if self._callbacks is not None:
                self._callbacks.before_step(self.state.step)
            step = self.state.step
            membership.doing("works", f"examples of step {step}")
            batch = self._batches.next_batch()
            if self._ledger is not None:
                self._ledger.give(step, self._batches.record_ids)
            membership.doing("works", f"step {step}", has_come=self._step.has_come)
            sums = self._step.step(
                batch,
                wants_change=membership.wants_change(),
                is_alone=world.is_alone,
                salt=lanes.start,
            )
            membership.doing("works", f"the end of step {step}")
            self._check(sums)
            if self._ledger is not None:
                self._ledger.done(self.state.step, sums)
            if self._callbacks is not None:
                self._callbacks.after_step(sums)
            self.state.commit()
            membership.progress(self.state.step)
            if world.is_leader:
                self._checkpoints.after_step(vars(self._counters))
                self._tell(sums, world)
            if sums.wants_change:
                return False

    def finish(self, world: World) -> Success:
        """Write the trained model; the others wait, and take over if the leader is lost."""
        if world.is_leader:
            # Kept, so that a longer training can go on from here.
            self._save()
            if self._callbacks is not None:
                self._callbacks.end()
            if self._stopping is not None:
                self._stopping.restore_best()
            trained_model.write(
                Path(self._config.output),
                loaded=self._loaded,
                model=self._step.model,
                framework=self._framework,
                config=self._config,
                metrics=self._final_metrics(),
                steps=self.state.step,
            )
            self._checkpoints.wait()
        if not world.is_alone:
            # All ranks: each has done the last step.
            self._framework.collectives.sum(np.zeros(()), "edl.finish")
        return Success(
            steps=self.state.step,
            metrics=self._final_metrics(),
            output=self._config.output,
        )

    def dismissed(self, *, has_state: bool) -> None:
        """Save the last step if this rank led or its ring broke: it may be the whole job that ends.

        Several may save the same step, each its own whole file; one is as good as another.

        Args:
            has_state: Whether it is to save in any case.
        """
        if (has_state or self._may_be_last) and self._checkpoints.newest_step() < self.state.step:
            self._save()

    def close(self) -> None:
        """Let a checkpoint be written to its end."""
        self._checkpoints.wait()

    def _save(self) -> None:
        self._checkpoints.save(vars(self._counters))

    def _is_evaluation_due(self) -> bool:
        step = self.state.step
        if self._evaluator is None or step == 0 or self._counters.evaluated_step >= step:
            return False
        every = self._config.train.evaluate_steps or self._plan.steps_per_epoch
        return step % every == 0 or step >= self.num_steps

    def _evaluate(self, world: World, membership: Membership) -> None:
        assert self._evaluator is not None
        assert self._evaluation is not None
        self._evaluator.restart(world, 0)
        local = self._evaluator.local_sums(self._evaluator.num_steps, membership)
        membership.doing("waits", f"evaluation after step {self.state.step}")
        # All ranks: the step number decides, as here.
        sums = self._evaluator.over_ring(local, world)
        metrics = self._evaluator.metrics(sums)
        self._evaluation.assign(sums.vector)
        if self._stopping is not None:
            self._stopping.after_evaluation(self.state.step, metrics, sums.vector)
        self._counters.evaluated_step = self.state.step
        if world.is_leader and not self._was_evaluation_told():
            self._events.write(
                EvaluationEvent(
                    step=self.state.step, metrics=metrics, examples=int(sums.num_examples)
                )
            )
            if self._stopping is not None and self._stopping.is_over:
                step, best = self._stopping.best
                name = self._config.train.early_stopping.metric
                message = f"training stops early: the best {name} was {best:.4g}, at step {step:,}"
                self._events.write(LogEvent(message=message))

    def _was_evaluation_told(self) -> bool:
        """Whether a former leader told it, and was lost before the others had its end."""
        step = self.state.step
        return step == self._began_at and self._events.has(
            lambda event: isinstance(event, EvaluationEvent) and event.step == step
        )

    def _is_over(self) -> bool:
        """Whether no step follows; the state decides, so all ranks agree."""
        if self.state.step >= self.num_steps:
            return True
        parts = (self._stopping, self._callbacks)
        return any(part is not None and part.is_over for part in parts)

    def _are_calls_due(self) -> bool:
        """Whether the state stands between two epochs and the callbacks do not know yet."""
        step, is_last = self.state.step, self.state.step >= self.num_steps
        is_between = step % self._plan.steps_per_epoch == 0 or is_last
        is_begin_due = not is_last and self._counters.epoch_begun_step < step
        return is_between and (self._is_epoch_end_due() or is_begin_due)

    def _is_epoch_end_due(self) -> bool:
        return self.state.step > max(0, self._counters.epoch_ended_step)

    def _call(self, callbacks: Callbacks, world: World) -> None:
        step, per_epoch = self.state.step, self._plan.steps_per_epoch
        if world.is_leader:
            if self._is_epoch_end_due():
                callbacks.end_epoch((step - 1) // per_epoch, self._metrics())
                self._counters.epoch_ended_step = step
            if not self._is_over():
                callbacks.begin_epoch(step // per_epoch)
                self._counters.epoch_begun_step = step
        if not world.is_alone:
            # All ranks: the counters decide, as for all of the state. The leader is ahead by its
            # calls, so everybody gets what they changed, also if this is not completed.
            self.state.sync()

    def _metrics(self) -> dict[str, float]:
        """Those of the last evaluation; empty where there was none."""
        if self._evaluator is None or self._evaluation is None or self._counters.evaluated_step < 0:
            return {}
        sums = EvaluationSums.of(self._evaluation.numpy())
        return self._evaluator.metrics(sums) if sums.num_examples else {}

    def _final_metrics(self) -> dict[str, float]:
        """Those of the weights that the trained model has."""
        best = self._stopping.best_sums if self._stopping is not None else None
        if self._evaluator is None or best is None:
            return self._metrics()
        sums = EvaluationSums.of(best)
        return self._evaluator.metrics(sums) if sums.num_examples else self._metrics()

    def _check(self, sums: StepSums) -> None:
        if not sums.is_finite:
            raise TrainingError(
                f"The loss of step {self.state.step + 1} is not finite. Received:"
                f" loss={sums.loss}. The variables are still those before it. Lower the learning"
                " rate (train.learning_rate), or look for bad values in the data."
            )

    def _tell(self, sums: StepSums, world: World) -> None:
        now = time.monotonic()
        # Each ring's first step is told, however short it lives: it ends the stall before it.
        is_due = now - self._told_at >= EVENT_SECONDS or not self._is_ring_told
        if not is_due and self.state.step < self.num_steps:
            return
        records = self.records_seen()
        rate = (records - self._told_records) / max(now - self._told_at, 1e-9)
        self._events.write(
            StepEvent(
                step=self.state.step,
                total_steps=self.num_steps,
                epoch=(self.state.step - 1) // self._plan.steps_per_epoch,
                loss=sums.loss,
                records_per_second=round(rate, 1),
                records_seen=records,
                size=world.size,
                metrics=sums.metrics,
            )
        )
        self._told_at, self._told_records, self._is_ring_told = now, records, True


def _early_stopping(
    config: JobConfig, step: Step, evaluator: Evaluator | None
) -> EarlyStopping | None:
    if not config.train.early_stopping.metric or evaluator is None:
        return None
    return EarlyStopping(
        config.train.early_stopping,
        step.model_variables,
        names=evaluator.names,
        num_sums=len(evaluator.zeros.vector),
    )


def _num_steps(config: JobConfig, plan: DataPlan, callbacks: Callbacks | None) -> int:
    all_steps = config.train.epochs * plan.steps_per_epoch
    bound = callbacks.max_steps if callbacks is not None else None
    return min(all_steps, config.train.max_steps or all_steps, bound or all_steps)
