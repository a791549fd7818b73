"""The `train` task: steps over the ring, evaluations between them, a trained model at the end."""

import contextlib
import functools
from pathlib import Path

import numpy as np

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, TrainingError
from edl_horovod.frameworks.base import Callbacks, Framework, Step
from edl_horovod.frameworks.values import StateGroup, StepSums, Variable
from edl_horovod.frameworks.world import World
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.ledger import LedgerFile
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.ring.checkpoint import OPTIONAL, Checkpoints
from edl_horovod.ring.ledger import RingLedger
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.carried_zoo import CarriedZoo
from edl_horovod.tasks.course import Course, TrainCounters
from edl_horovod.tasks.evaluate import Evaluator
from edl_horovod.tasks.learning_rate import LearningRateRule
from edl_horovod.tasks.opening import OpenData, model_to_begin_with, open_data
from edl_horovod.tasks.proof import Prover
from edl_horovod.tasks.step_reports import StepReports
from edl_horovod.tasks.validation import Validation

__all__ = ["TrainWork", "make_warm"]


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    identity: WorkerIdentity,
    stack: contextlib.ExitStack,
    prover: Prover | None,
) -> Work:
    """Open the data, load and build the model, rehearse the step; see `tasks.warm`."""
    if config.model and not config.model_def:
        raise ConfigError(
            "No model zoo has been written of this model in files yet.",
            received={"model.name": config.model["name"]},
            hint="Start the job by edl train, which writes one; config.yaml in its job's directory"
            " has its model_zoo and model_def.",
        )
    carried = CarriedZoo(config)
    stack.enter_context(carried.recorded())
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
    data = open_data(config, framework, config.data, loaded, Mode.TRAINING, events, stack)
    step = framework.step(
        loaded,
        data.batches.element_spec,
        config.train,
        scales_learning_rate=data.plan.is_growing,
    )
    trained_model.require_writable(step.model.weights)
    if data.first is not None:
        step.rehearse(data.first)
    validation = None
    if config.validation_data:
        held_out = open_data(
            config,
            framework,
            config.validation_data,
            loaded,
            Mode.EVALUATION,
            events,
            stack,
            trained_columns=data.columns,
        )
        evaluator = Evaluator.of(step.model, held_out, framework.collectives)
        validation = Validation(evaluator, config.train, step.model_variables, events)
    if (files := model_to_begin_with(config)) is not None:
        with trained_model.naming_versions(files):
            trained_model.restore_weights(files, step.model.weights)
    elif config.init_from:
        step.model.load(Path(config.init_from), is_trusted=config.trusts("model"))
    ledger = None
    if config.debug.ledger:
        file = LedgerFile(JobDir.of(config).ledger, identity.label)
        ledger = RingLedger(file, framework.collectives)
        stack.callback(ledger.close)
    work = TrainWork(
        config,
        framework,
        loaded,
        data,
        step,
        validation=validation,
        events=events,
        ledger=ledger,
        carried=carried,
    )
    carried.check()
    if prover is not None:
        carried.prove(prover, loaded, step.model)
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
        data: OpenData,
        step: Step,
        *,
        validation: Validation | None,
        events: EventLog,
        ledger: RingLedger | None,
        carried: CarriedZoo,
    ) -> None:
        """Put the parts together."""
        plan = data.plan
        self._validation = validation
        self._callbacks = step.callbacks(
            num_epochs=config.train.epochs,
            steps_per_epoch=None if plan.is_growing else plan.steps_per_epoch,
            per_step=config.callbacks.per_step,
        )
        self._rule: LearningRateRule | None = None
        if plan.is_growing:
            warmup_steps = config.elastic.learning_rate_warmup_steps
            self._rule = LearningRateRule(warmup_steps=warmup_steps)
        self._parts: list[Validation | Callbacks]
        self._parts = [part for part in (validation, self._callbacks) if part is not None]
        variables: dict[str, Variable] = {**step.variables}
        groups = list(step.groups)
        for part in (*self._parts, *([self._rule] if self._rule is not None else [])):
            variables |= {
                f"{OPTIONAL}{name}": variable for name, variable in part.variables.items()
            }
        if validation is not None:
            # They change at evaluations alone, and then all ranks have the state.
            groups += [StateGroup((f"{OPTIONAL}{name}",)) for name in validation.best_weights]
        self._checkpoints = Checkpoints(
            JobDir.of(config).checkpoints,
            variables,
            facts={**plan.facts(), "train.learning_rate": config.train.learning_rate},
            config=config.checkpoint,
            must_exist=config.resume == "must",
            events=events,
        )
        self._counters = TrainCounters()
        self._course = Course(
            plan,
            self._counters,
            num_epochs=config.train.epochs,
            max_steps=_max_steps(config, self._callbacks),
        )
        self.state = RingState(
            variables,
            self._counters,
            framework.collectives,
            durable=self._checkpoints,
            groups=groups,
            join_share=config.elastic.join_share,
        )
        self._framework = framework
        self._config = config
        self._loaded = loaded
        self._batches = data.batches
        self._columns = data.columns
        self._plan = plan
        self._step = step
        self._ledger = ledger
        self._carried = carried
        self._reports = StepReports(events, self._course)
        self._began_at = -1
        self._may_be_last = False

    def records_seen(self) -> int:
        """Records of the steps that are done."""
        return self._course.records_done

    def expect(self, world: World, step: int) -> None:
        """Begin to read and to make examples while the ring forms."""
        if self._plan.is_growing and step != max(0, self.state.step):
            return  # How many records the steps until then take, only those who do them know.
        spans = self._course.spans_on(world.size)
        lanes, last_step = self._lanes(world), self._course.last_step_of(spans)
        self._batches.expect(lanes, step, last_step, spans)

    def run(self, world: World, membership: Membership) -> bool:
        """Train from `state.step` on."""
        self._carried.require_proof(is_first_step=self.state.step <= 0)
        # Until it is left in good order: with a ring that breaks its leader may be lost.
        self._may_be_last = True
        train = functools.partial(self._train, world, membership)
        is_done = None
        while is_done is None:
            if self._ledger is None:
                is_done = train()
            else:
                records = self._course.records_done
                is_done = self._ledger.in_ring(world, self.state, train, records=records)
        self._may_be_last = world.is_leader
        return is_done

    def _train(self, world: World, membership: Membership) -> bool | None:
        """Train as long as the same ranks have the state, and so lanes; None where others have."""
        course, holders = self._course, self.state.holders(world)
        part = world.among(holders)
        lanes = self._lanes(part) if part is not None else range(0)
        course.enter(len(holders))
        if part is not None:
            self._batches.restart(lanes, self.state.step, course.num_steps, course.spans)
        if self._rule is not None:
            self._rule.enter(len(holders), self.state.step)
        self._reports.enter_ring()
        if self._validation is not None:
            self._validation.enter_ring()
        self._began_at = self.state.step
        while True:
            if self.state.is_streaming and self._stream_on(world, membership):
                return None
            if world.is_leader and self._course.is_cut_short:
                membership.doing("unwatched", f"the checkpoint of step {self.state.step}")
                self._save_for_longer()
            if self._validation is not None and self._is_evaluation_due():
                self._reports.report_last()
                step = self.state.step
                # All ranks: the step number decides. Where the ring began with it, a former leader
                # may have told of it, and been lost before the others had its end.
                may_be_reported = step == self._began_at
                self._validation.evaluate(step, world, membership, may_be_reported=may_be_reported)
                self._counters.evaluated_step = step
            if self._callbacks is not None and self._are_calls_due():
                membership.doing("unwatched", f"callbacks after step {self.state.step}")
                self._call(self._callbacks, world)
            if self._is_over():
                self._reports.report_last()
                return True
            number = self.state.step - max(0, self._counters.epoch_begun_step)
            number_on_leader = number if world.is_leader else None
            if self._callbacks is not None:
                self._callbacks.before_step(self.state.step, batch=number_on_leader)
            if self._rule is not None:
                self._step.scale_learning_rate(self._rule.factor(self.state.step))
            step = self.state.step
            batch = None
            if part is not None:
                membership.doing("works", f"examples of step {step}")
                batch = self._batches.next_batch()
                if self._ledger is not None:
                    self._ledger.give(step, self._batches.record_ids)
            membership.doing("works", f"step {step}", has_come=self._step.is_waiting)
            sums = self._step.step(
                batch,
                wants_change=membership.wants_change(),
                is_alone=world.is_alone,
                salt=lanes.start,
            )
            membership.doing("works", f"the end of step {step}")
            self._check(sums)
            if self._ledger is not None and part is not None:
                self._ledger.done(self.state.step, sums)
            if self._callbacks is not None:
                self._callbacks.after_step(sums, batch=number_on_leader)
            course.end_step()
            self.state.commit()
            if part is not None:
                membership.progress(self.state.step)
            if world.is_leader:
                self._checkpoints.after_step(vars(self._counters))
                self._reports.report(self.state.step, sums, len(holders))
            if sums.wants_change:
                return False

    def _stream_on(self, world: World, membership: Membership) -> bool:
        """Give newcomers more of the state; returns whether one has all now, and so needs lanes.

        All ranks: the state says for how long there is a stream, and when it is cut short.
        """
        lacks_state = not self.state.is_whole
        membership.doing("waits", f"more of the state after step {self.state.step}")
        is_due = (self._validation is not None and self._is_evaluation_due()) or (
            self._callbacks is not None and self._are_calls_due()
        )
        if is_due or self._is_over() or self.state.is_hurried:
            self.state.complete()
            is_done = True
        elif self.state.step == self._began_at:
            is_done = False  # What is new in a ring, its first step takes up.
        else:
            is_done = self.state.stream_on(hurries=not membership.keeps_holders())
        if lacks_state and self.state.is_whole:
            membership.formed(world)
        return is_done

    def finish(self, world: World) -> Success:
        """Write the trained model; the others wait, and take over if the leader is lost."""
        metrics = self._validation.final_metrics() if self._validation is not None else {}
        if world.is_leader:
            # Kept, so that a longer training can go on from here.
            if self._checkpoints.newest_step() < self.state.step:
                self._save()
            self._step.finalize()
            if self._callbacks is not None:
                self._callbacks.end()
            if self._validation is not None:
                self._validation.restore_best()
            trained_model.write(
                Path(self._config.output),
                loaded=self._loaded,
                model=self._step.model,
                framework=self._framework,
                config=self._config,
                metrics=metrics,
                steps=self.state.step,
                files=self._carried.files(),
                columns=self._columns,
            )
            self._checkpoints.wait()
        if not world.is_alone:
            # All ranks: each has done the last step.
            self._framework.collectives.sum(np.zeros(()), "edl.finish")
        return Success(steps=self.state.step, metrics=metrics, output=self._config.output)

    def dismissed(self, *, has_state: bool) -> None:
        """Save the last step if this rank led or its ring broke: it may be the whole job that ends.

        Several may save the same step, each its own whole file; one is as good as another.
        """
        is_last = has_state or self._may_be_last
        if is_last and self._checkpoints.newest_step() < self.state.own_step:
            self._save()

    def close(self) -> None:
        """Let a checkpoint be written to its end."""
        self._checkpoints.wait()

    def _save(self) -> None:
        self._checkpoints.save(vars(self._counters))

    def _save_for_longer(self) -> None:
        """Save what a longer training goes on from, in the midst of its epoch.

        It knows nothing of the evaluation that follows and of the epoch's end that callbacks and
        schedules are told of. Also a later leader, which has both in its state, leaves it so.
        """
        if self._checkpoints.newest_step() < self.state.step:
            self._save()
            self._checkpoints.wait()

    def _lanes(self, world: World) -> range:
        return self._plan.lanes_of(world.rank, world.size)

    def _is_evaluation_due(self) -> bool:
        step = self.state.step
        if step == 0 or self._counters.evaluated_step >= step:
            return False
        every = self._config.train.evaluate_steps
        is_time = step % every == 0 if every else self._course.is_between_epochs
        return is_time or self._course.is_at_end

    def _is_over(self) -> bool:
        """Whether no step follows; the state decides, so all ranks agree."""
        return self._course.is_at_end or any(part.is_over for part in self._parts)

    def _are_calls_due(self) -> bool:
        """Whether the state stands between two epochs and the callbacks do not know yet."""
        is_last = self._course.is_at_end
        is_between = self._course.is_between_epochs or is_last
        is_begin_due = not is_last and self._counters.epoch_begun_step < self.state.step
        return is_between and (self._is_epoch_end_due() or is_begin_due)

    def _is_epoch_end_due(self) -> bool:
        return self.state.step > max(0, self._counters.epoch_ended_step)

    def _call(self, callbacks: Callbacks, world: World) -> None:
        step = self.state.step
        if world.is_leader:
            if self._is_epoch_end_due():
                metrics = self._validation.metrics() if self._validation is not None else {}
                callbacks.end_epoch(self._course.epoch_of_last_step, metrics)
                self._counters.epoch_ended_step = step
            if not self._is_over():
                callbacks.begin_epoch(self._course.epoch)
                self._counters.epoch_begun_step = step
        if not world.is_alone:
            # All ranks: the counters decide, as for all of the state. The leader is ahead by its
            # calls, so everybody gets what they changed, also if this is not completed.
            self.state.sync(world)

    def _check(self, sums: StepSums) -> None:
        if sums.is_finite:
            return
        step = self.state.step + 1
        if np.isfinite(sums.loss):
            raise TrainingError(
                f"The gradients of step {step} are not finite, although its loss is.",
                received={"loss": sums.loss},
                hint="The variables are still those before it. Look for a function in the model or"
                " the loss whose derivative is infinite somewhere, as those of a square root and of"
                " a norm are at 0 (add a small number inside), or lower the learning rate"
                " (train.learning_rate).",
            )
        raise TrainingError(
            f"The loss of step {step} is not finite.",
            received={"loss": sums.loss},
            hint="The variables are still those before it. Lower the learning rate"
            " (train.learning_rate), or look for bad values in the data.",
        )


def _max_steps(config: JobConfig, callbacks: Callbacks | None) -> int | None:
    """The steps after which the training ends, whatever its epochs; None for no bound."""
    bounds = [config.train.max_steps or None, callbacks.max_steps if callbacks else None]
    return min((bound for bound in bounds if bound), default=None)
