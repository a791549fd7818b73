"""The `train` task: steps over the ring, evaluations between them, a trained model at the end.

If the batch grows with the ring, so does the learning rate: the linear scaling rule of Goyal et
al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, sections 2.1 (the rule) and
2.2 (gradual warm-up). The spec's learning rate is that for the batch of one rank, so a ring of n
ranks uses n times that rate, as users of plain Horovod do by `lr * hvd.size()`.
"""

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edl_horovod import trained_model
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import TrainingError
from edl_horovod.frameworks.base import CollectiveFailed, Framework, Step
from edl_horovod.frameworks.batches import StepBatches
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.values import Array, Batch, StateGroup, StepSums, Variable, num_bytes
from edl_horovod.frameworks.world import World
from edl_horovod.job import checkpoint_files
from edl_horovod.job.account import Cause
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.ledger import LedgerFile
from edl_horovod.models import job_zoo
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.records.layout import Column
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.checkpoint import OPTIONAL, Checkpoints
from edl_horovod.ring.ledger import RingLedger
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import Evaluator, NoValidation, Validation
from edl_horovod.tasks.federated import (
    LocalVariables,
    Party,
    PartyRounds,
    local_config,
    local_names,
)
from edl_horovod.tasks.local_rounds import LocalRounds, RoundBatches, RoundsOfJob
from edl_horovod.tasks.opening import Opening, model_to_begin_with
from edl_horovod.tasks.privacy import PrivacyAccount
from edl_horovod.tasks.progress import StepReports, TrainCounters, TrainingProgress
from edl_horovod.tasks.zoo_copy import ZooCopy, ZooCopyChecker


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    identity: WorkerIdentity,
    stack: contextlib.ExitStack,
    checker: ZooCopyChecker | None,
) -> Work:
    """Open the data, load and build the model, rehearse the step; see `tasks.warm`."""
    job_zoo.require_localized(config)
    zoo_copy = ZooCopy(config)
    stack.enter_context(zoo_copy.recorded())
    # Only in a training: the other tasks use trained models in float32.
    framework.use_precision(config.train.precision)
    loaded = load_spec(
        config.model_zoo,
        config.model_def,
        params=config.params,
        context={"worker_id": str(identity.slot), "master_ip": identity.coordinator_host},
        overrides=Overrides.of(config),
        plain_models=framework.plain_models,
    )
    opening = Opening(config, framework, events, stack)
    data = opening.data(config.data, loaded, Mode.TRAINING)
    step = framework.step(
        loaded, data.batches.element_spec, config, scales_learning_rate=data.plan.is_growing
    )
    plan, batches = data.plan, data.batches
    rounds: RoundBatches | None = None
    party: Party | None = None
    local_variables: LocalVariables | None = None
    local, compression = config.train.local, config.train.compression
    if local.steps:
        step = LocalRounds(step, framework.collectives, local, compression)
        of_job = RoundsOfJob(plan, local.steps)
        rounds = RoundBatches(data.make_batches, of_job, warmup=batches)
        stack.callback(rounds.close)
    elif config.federated.rounds:
        of_party, local = PartyRounds(plan, config.federated), local_config(config.federated)
        variables = step.model_variables
        names = local_names(config.federated.local_variables, variables, step.trained)
        local_variables = LocalVariables(
            {name: variables[name] for name in sorted(names)},
            checkpoint_files.local_path_of(JobDir.of(config).checkpoints),
            training=identity.training,
            events=events,
        )
        account: PrivacyAccount | None = None
        if config.federated.privacy.clip:
            account = PrivacyAccount(
                config, of_party, plan.steps_per_epoch, training=identity.training, events=events
            )
        party = Party(config, identity.training, account)
        step = LocalRounds(step, framework.collectives, local, compression, party, names)
        rounds = RoundBatches(data.make_batches, of_party, warmup=batches)
        stack.callback(rounds.close)
        plan = of_party.plan
    trained_model.require_writable(step.model.weights)
    if data.first is not None:
        step.rehearse(data.first)
    validation: Validation | NoValidation = NoValidation()
    if config.validation_data:
        held_out = opening.data(
            config.validation_data, loaded, Mode.EVALUATION, trained_columns=data.columns
        )
        evaluator = Evaluator.of(step.model, held_out, framework.collectives, party=party)
        validation = Validation(evaluator, config.train, step.model_variables, events)
    if (files := model_to_begin_with(config)) is not None:
        with trained_model.naming_versions(files):
            trained_model.restore_weights(files, step.model.weights)
    elif config.init_from:
        step.model.load(Path(config.init_from), is_trusted=config.trusts("model"))
    if local_variables is not None:
        local_variables.restore()
    file = LedgerFile(JobDir.of(config).ledger, identity.label) if config.debug.ledger else None
    ledger = RingLedger(file, framework.collectives)
    stack.callback(ledger.close)
    work = TrainWork(
        config,
        framework,
        loaded,
        rounds or batches,
        plan,
        step,
        columns=data.columns,
        validation=validation,
        events=events,
        ledger=ledger,
        zoo_copy=zoo_copy,
        party=party,
        local_variables=local_variables,
        training=identity.training,
    )
    zoo_copy.check()
    if checker is not None:
        zoo_copy.begin_check(checker, loaded, step.model)
    stack.callback(work.close)
    # A newcomer reads the newest checkpoint now, before it joins; later steps it gets by the sync.
    work.state.recover()
    return work


@dataclass(frozen=True)
class _Ring:
    """A ring, for as long as the same ranks have the state."""

    world: World
    membership: Membership
    lanes: range | None
    """The lanes that this rank reads; None while it does not have all of the state."""
    num_holders: int
    """Number of ranks that have the state."""


class TrainWork(Work):
    """The work of a training: the data is open, the model built, the step traced."""

    def __init__(
        self,
        config: JobConfig,
        framework: Framework,
        loaded: LoadedSpec,
        batches: StepBatches | RoundBatches,
        plan: DataPlan,
        step: Step,
        *,
        columns: Sequence[Column],
        validation: Validation | NoValidation,
        events: EventLog,
        ledger: RingLedger,
        zoo_copy: ZooCopy,
        party: Party | None = None,
        local_variables: LocalVariables | None = None,
        training: str = "",
    ) -> None:
        self._party, self._local_variables = party, local_variables
        self._validation = validation
        num_epochs = config.federated.rounds or config.train.epochs
        has_equal_epochs = not plan.is_growing and not plan.warmup_steps
        callbacks = step.callbacks(
            num_epochs=num_epochs,
            steps_per_epoch=plan.steps_per_epoch if has_equal_epochs else None,
            per_step=config.callbacks.per_step,
        )
        self._callbacks = callbacks or _NoCallbacks()
        self._rule: LearningRateRule | ConstantLearningRate = ConstantLearningRate()
        if plan.is_growing:
            warmup_steps = config.elastic.learning_rate_warmup_steps
            self._rule = LearningRateRule(warmup_steps=warmup_steps)
        variables: dict[str, Variable] = {**step.variables}
        groups = list(step.groups)
        for part in (validation, self._callbacks, self._rule):
            variables |= {f"{OPTIONAL}{name}": value for name, value in part.variables.items()}
        # They may be streamed, although no step keeps a newcomer's part of them current: they
        # change only at evaluations, when all ranks have the state.
        groups += [StateGroup((f"{OPTIONAL}{name}",)) for name in validation.best_weights]
        self._checkpoints = Checkpoints(
            JobDir.of(config).checkpoints,
            variables,
            facts={**plan.facts(), **_facts(config, training)},
            config=config.checkpoint,
            must_exist=config.resume == "must",
            events=events,
        )
        self._counters = TrainCounters()
        self._progress = TrainingProgress(
            plan,
            self._counters,
            num_epochs=num_epochs,
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
        self._config, self._framework, self._loaded = config, framework, loaded
        self._plan, self._batches, self._columns = plan, batches, tuple(columns)
        self._step, self._ledger, self._zoo_copy = step, ledger, zoo_copy
        trained = [step.model_variables[name] for name in step.trained]
        self._step_bytes = sum(num_bytes(value.shape, value.dtype) for value in trained)
        self._reports = StepReports(events, self._progress)
        self._began_at = -1
        """Step at which the ring began, or its set of holders last changed."""
        self._may_be_last = False
        """Whether this rank must save its state if it is dismissed: no other may have that."""

    def check(self, world: World) -> None:
        """Check that the parties of a federated training fit together; see `Work`."""
        if self._party is not None:
            assert isinstance(self._step, LocalRounds)
            state = self.state
            descriptions = dict(zip(state.variables, state.descriptions, strict=True))
            texts = [
                f"{self._progress.num_steps} rounds in all",
                *self._step.metric_names,
                f"{self._step.num_metric_sums} sums of metrics",
                *descriptions.values(),
                *(f"{descriptions[name]}, which is trained" for name in self._step.trained),
                *(f"classes {', '.join(x.classes)}" for x in self._columns if x.classes),
            ]
            self._party.check_fits(world, texts, self._framework.collectives)

    def writes_files(self, world: World) -> bool:
        """Whether this rank writes events, checkpoints and the result: the leader or a party."""
        return world.is_leader or self._party is not None

    def records_seen(self) -> int:
        """Records of the steps that are done."""
        return self._progress.records_done

    def expect(self, world: World, step: int) -> None:
        """Begin to read records and to create examples while the ring forms."""
        if self._plan.is_growing and step != max(0, self.state.step):
            return  # Only the ranks that do the steps until then know how many records they take.
        spans = self._progress.spans_on(world.size)
        lanes, last_step = self._lanes(world), self._progress.last_step_of(spans)
        self._batches.expect(lanes, step, last_step, spans)

    def run(self, world: World, membership: Membership) -> bool:
        """Train from `state.step` on."""
        self._zoo_copy.require_loadable(is_first_step=self.state.step <= 0)
        if isinstance(self._step, LocalRounds):
            self._step.doing = membership.doing
        membership.activity.step_bytes = self._step_bytes
        # Until the ring is left in good order: if it breaks, its leader may be lost.
        self._may_be_last = True
        train = functools.partial(self._train, world, membership)
        is_done = None
        activity: tuple[str, str, Cause] = ("unwatched", "beginning", "between")
        while is_done is None:
            records = self._progress.records_done
            with membership.doing(*activity):
                is_done = self._ledger.in_ring(world, self.state, train, records=records)
            activity = ("waits", "assigning the lanes", "state")
        self._may_be_last = world.is_leader
        return is_done

    def _train(self, world: World, membership: Membership) -> bool | None:
        """Train until the job is done (True) or the ring must change (False).

        None means that a newcomer now has all of the state: assign the lanes again, and go on.
        """
        ring, timeline = self._enter(world, membership), membership.activity.timeline
        with membership.doing("works", "between two steps", "between"):
            while True:
                if self.state.is_streaming and self._stream_on(ring):
                    return None
                self._save_if_cut_short(ring)
                self._evaluate_if_due(ring)
                self._call_if_due(ring)
                if self._is_over():
                    self._reports.report_last()
                    return True
                step, began = self.state.step, time.monotonic()
                batch = self._next_batch(ring)
                sums = self._do_step(ring, batch)
                self._end_step(ring, sums)
                if timeline is not None:
                    timeline.add_step(step, began)
                if sums.wants_change:
                    return False

    def _enter(self, world: World, membership: Membership) -> _Ring:
        """Assign lanes to the ranks with the state, and begin to read those of this rank."""
        holders = self.state.holders(world)
        part = world.among(holders)
        lanes = self._lanes(part) if part is not None else None
        self._progress.enter(len(holders))
        if lanes is not None:
            self._batches.restart(
                lanes, self.state.step, self._progress.num_steps, self._progress.spans
            )
        self._rule.enter(len(holders), self.state.step)
        self._reports.enter_ring()
        self._validation.enter_ring()
        self._began_at = self.state.step
        return _Ring(world=world, membership=membership, lanes=lanes, num_holders=len(holders))

    def _stream_on(self, ring: _Ring) -> bool:
        """Send newcomers more of the state; returns whether one now has all of it and needs lanes.

        All ranks call it, and decide the same, because they decide by the state.
        """
        lacks_state = not self.state.is_whole
        with ring.membership.doing(
            "waits", f"more of the state after step {self.state.step}", "state"
        ):
            is_due = self._is_evaluation_due() or self._are_calls_due()
            if is_due or self._is_over() or self.state.must_send_all:
                self.state.complete()
                is_done = True
            elif self.state.step == self._began_at:
                is_done = False  # Slices follow steps, and this ring has done none yet.
            else:
                is_done = self.state.stream_on(hurries=not ring.membership.can_stream_state())
        if lacks_state and self.state.is_whole:
            ring.membership.formed(ring.world)
        return is_done

    def _save_if_cut_short(self, ring: _Ring) -> None:
        """Save a checkpoint for a longer training if this one ends within an epoch.

        For the longer training, the epoch does not end here. So the checkpoint must not contain the
        final evaluation and the epoch's end, which callbacks and schedules count. A later leader,
        whose state contains them, finds the checkpoint and does not replace it.
        """
        if not (self.writes_files(ring.world) and self._progress.is_cut_short):
            return
        with ring.membership.doing(
            "unwatched", f"the checkpoint of step {self.state.step}", "checkpoint"
        ):
            if self._checkpoints.newest_step() < self.state.step:
                self._save()
                self._checkpoints.wait()

    def _evaluate_if_due(self, ring: _Ring) -> None:
        if isinstance(self._validation, NoValidation) or not self._is_evaluation_due():
            return
        self._reports.report_last()
        step = self.state.step
        # All ranks evaluate: the step number decides. If the ring began at this step, a former
        # leader may have reported the evaluation, and been lost before the other ranks completed
        # it.
        may_be_reported = step == self._began_at
        with ring.membership.doing("works", f"evaluation after step {step}", "evaluation"):
            self._validation.evaluate(
                step, ring.world, ring.membership, may_be_reported=may_be_reported
            )
        self._counters.evaluated_step = step

    def _call_if_due(self, ring: _Ring) -> None:
        """Run the callbacks between two epochs, on the leader."""
        if isinstance(self._callbacks, _NoCallbacks) or not self._are_calls_due():
            return
        step = self.state.step
        with ring.membership.doing("unwatched", f"callbacks after step {step}", "callbacks"):
            if ring.world.is_leader:
                if self._is_epoch_end_due():
                    last_epoch = self._progress.epoch_of_last_step
                    self._callbacks.end_epoch(last_epoch, self._validation.metrics())
                    self._counters.epoch_ended_step = step
                if not self._is_over():
                    self._callbacks.begin_epoch(self._progress.epoch)
                    self._counters.epoch_begun_step = step
            if not ring.world.is_alone:
                # All ranks call it: the counters decide. They make the leader the most advanced
                # rank, so all get what the callbacks changed, even if this sync is interrupted.
                self.state.sync(ring.world)

    def _next_batch(self, ring: _Ring) -> Batch | None:
        """Return this rank's examples of the next step; None if it has none."""
        step = self.state.step
        with ring.membership.doing("works", f"examples of step {step}", "input"):
            with self._calling(ring):
                self._callbacks.before_step(step, batch=self._number_in_epoch(ring))
            self._rule.apply(self._step, step)
            if ring.lanes is None:
                return None
            batch = self._batches.next_batch()
            self._ledger.give(step, self._batches.record_ids)
        return batch

    def _do_step(self, ring: _Ring, batch: Batch | None) -> StepSums:
        phase, membership = f"step {self.state.step}", ring.membership
        with membership.doing("works", phase, "computing", self._step.is_waiting):
            try:
                sums = self._step.step(
                    batch,
                    wants_change=membership.wants_change(),
                    is_alone=ring.world.is_alone,
                    # The first lane is different on each rank.
                    salt=ring.lanes.start if ring.lanes is not None else 0,
                )
            except CollectiveFailed:
                membership.activity.is_done_again(waited=self._step.waited_seconds())
                raise
            membership.activity.step_ended(
                exchange=sums.exchange_seconds, applying=sums.apply_seconds
            )
            if (timeline := membership.activity.timeline) is not None:
                after = sums.exchange_seconds + sums.apply_seconds
                timeline.add_reductions(sums.reductions, time.monotonic() - after)
            return sums

    def _end_step(self, ring: _Ring, sums: StepSums) -> None:
        """Count a step as done, and report it."""
        with ring.membership.doing("works", f"the end of step {self.state.step}", "between"):
            self._check(sums)
            if ring.lanes is not None:
                self._ledger.done(self.state.step, sums)
            with self._calling(ring):
                self._callbacks.after_step(sums, batch=self._number_in_epoch(ring))
            self._progress.end_step()
            self._validation.end_step()
            self.state.commit()
            if self._local_variables is not None:
                self._local_variables.save(self.state.step)
            if ring.lanes is not None:
                ring.membership.progress(self.state.step)
            if self.writes_files(ring.world):
                with ring.membership.doing("works", "the checkpoint", "checkpoint"):
                    self._checkpoints.after_step(vars(self._counters))
                self._reports.report(self.state.step, sums, ring.num_holders)

    def _calling(self, ring: _Ring) -> contextlib.AbstractContextManager[None]:
        """The time of the user's hooks of a step, if there are any."""
        if isinstance(self._callbacks, _NoCallbacks):
            return contextlib.nullcontext()
        return ring.membership.doing("works", f"hooks of step {self.state.step}", "callbacks")

    def _number_in_epoch(self, ring: _Ring) -> int | None:
        """The number of the current step in its epoch, from 0; None if this is not the leader."""
        if not ring.world.is_leader:
            return None
        return self.state.step - max(0, self._counters.epoch_begun_step)

    def finish(self, world: World) -> Success:
        """Write the trained model; the others wait, and take over if the leader is lost."""
        metrics = self._validation.final_metrics()
        if self._party is not None:
            # All have the last round then, and each writes a trained model of its own.
            self._wait_for_all(world)
        if self.writes_files(world):
            # For a longer training, which continues from this checkpoint.
            if self._checkpoints.newest_step() < self.state.step:
                self._save()
            self._step.finalize()
            self._callbacks.end()
            self._validation.restore_best()
            trained_model.write(
                Path(self._config.output),
                loaded=self._loaded,
                model=self._step.model,
                framework=self._framework,
                config=self._config,
                metrics=metrics,
                steps=self.state.step,
                files=self._zoo_copy.files(),
                columns=self._columns,
            )
            self._checkpoints.wait()
        if self._party is None:
            self._wait_for_all(world)
        return Success(steps=self.state.step, metrics=metrics, output=self._config.output)

    def _wait_for_all(self, world: World) -> None:
        if not world.is_alone:
            # All ranks call it: each has done the last step.
            self._framework.collectives.sum(np.zeros(()), "edl.finish")

    def dismissed(self, *, has_state: bool) -> None:
        """Save the state if it may exist on no other rank, because the whole job may be ending.

        Several ranks may save the same step. Each writes a whole file, and any of them is good.
        """
        is_last = has_state or self._may_be_last
        if is_last and self._checkpoints.newest_step() < self.state.own_step:
            self._save()

    def close(self) -> None:
        """Wait until a checkpoint that is being written is complete."""
        self._checkpoints.wait()

    def _save(self) -> None:
        self._checkpoints.save(vars(self._counters))

    def _lanes(self, world: World) -> range:
        if self._party is not None:
            return range(self._plan.num_lanes)
        return self._plan.lanes_of(world.rank, world.size)

    def _is_evaluation_due(self) -> bool:
        step = self.state.step
        is_evaluated = step == 0 or self._counters.evaluated_step >= step
        if is_evaluated or isinstance(self._validation, NoValidation):
            return False
        every = self._config.train.evaluate_steps
        is_time = step % every == 0 if every else self._progress.is_between_epochs
        return is_time or self._progress.is_at_end

    def _is_over(self) -> bool:
        """Whether no more steps follow; decided by the state, so all ranks agree."""
        return self._progress.is_at_end or self._validation.is_over or self._callbacks.is_over

    def _are_calls_due(self) -> bool:
        """Whether the state is between two epochs and the callbacks have not been called yet."""
        if isinstance(self._callbacks, _NoCallbacks):
            return False
        is_last = self._progress.is_at_end
        is_between = self._progress.is_between_epochs or is_last
        is_begin_due = not is_last and self._counters.epoch_begun_step < self.state.step
        return is_between and (self._is_epoch_end_due() or is_begin_due)

    def _is_epoch_end_due(self) -> bool:
        return self.state.step > max(0, self._counters.epoch_ended_step)

    def _check(self, sums: StepSums) -> None:
        if sums.is_finite:
            return
        step = self.state.step + 1
        if np.isfinite(sums.loss):
            raise TrainingError(
                f"The gradients of step {step} are not finite, although its loss is.",
                received={"loss": sums.loss},
                hint="The step was not applied. Look for a function in the model or the loss whose"
                " derivative is infinite somewhere, like those of a square root and a norm at 0"
                " (add a small number inside), or lower the learning rate (train.learning_rate).",
            )
        raise TrainingError(
            f"The loss of step {step} is not finite.",
            received={"loss": sums.loss},
            hint="The step was not applied. Lower the learning rate (train.learning_rate), or look"
            " for bad values in the data.",
        )


class _NoCallbacks:
    """The callbacks of a training without any."""

    variables: Mapping[str, Variable] = MappingProxyType({})
    is_over = False
    max_steps: int | None = None

    def before_step(self, step: int, *, batch: int | None) -> None:
        pass

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        pass

    def end(self) -> None:
        pass


_FACTS_OF_PARTY = tuple(
    f"federated.{key}" for key in ("party", "weighting", "fraction", "proximal_mu")
)


def _facts(config: JobConfig, training: str) -> dict[str, Any]:
    """The settings, apart from those of the data, that a resumed training must keep."""
    facts: dict[str, Any] = {"train.learning_rate": config.train.learning_rate}
    if config.train.local.steps:
        # Checkpoints from before there were fragments have none of these.
        local = vars(config.train.local).items()
        fragments = ("fragments", "fragment_steps") if config.train.local.fragments == 1 else ()
        rounds = {f"train.local.{key}": value for key, value in local if key not in fragments}
        facts |= {**rounds, "train.batch_size": config.train.batch_size}
    if config.federated.rounds:
        rounds = {f"federated.{key}": value for key, value in vars(config.federated).items()}
        facts |= {key: rounds[key] for key in _FACTS_OF_PARTY}
        facts["train.batch_size"] = config.train.batch_size  # The plan has that of a round.
        if config.federated.local_variables:
            facts["federated.local_variables"] = config.federated.local_variables
        if clip := config.federated.privacy.clip:
            # Noise may change: the account of what is used up knows with which each pass was.
            facts["federated.privacy.clip"] = clip
        # The model with the most rounds goes to all parties, so it must be of their training.
        facts["--party-token"] = training
    return facts


def _max_steps(config: JobConfig, callbacks: EpochCallbacks | _NoCallbacks) -> int | None:
    """The number of steps after which the training ends before its epochs do; None for no limit."""
    bounds = [config.train.max_steps or None, callbacks.max_steps]
    return min((bound for bound in bounds if bound), default=None)


class ConstantLearningRate:
    """The rule for a fixed global batch: the learning rate is that of the spec."""

    variables: Mapping[str, Variable] = MappingProxyType({})

    def enter(self, size: int, step: int) -> None:
        """Do nothing."""

    def apply(self, step: Step, number: int) -> None:
        """Do nothing."""


class LearningRateRule:
    """Scales the learning rate with the ring; part of the ring's state, so equal on all ranks.

    After the ring has grown, the factor rises linearly over some steps, because large updates at
    once can make the training diverge. After it has shrunk, the factor falls at once.
    """

    def __init__(self, *, warmup_steps: int) -> None:
        """Begin with the learning rate of one rank."""
        self._warmup_steps = warmup_steps
        # The last change of the ring's size: the factor before it, its step, and the size since.
        self._state = Array(np.array([1.0, 0.0, 1.0]))

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Variables that must be part of the ring's state, by name."""
        return {"learning_rate_rule": self._state}

    def enter(self, size: int, step: int) -> None:
        """Begin with a ring of a size; all ranks call it, before the ring's first step."""
        if size != self._state.numpy()[2]:
            self._state.assign([min(self.factor(step), float(size)), float(step), float(size)])

    def apply(self, step: Step, number: int) -> None:
        """Set the factor of the step with this number, which is about to run."""
        step.scale_learning_rate(self.factor(number))

    def factor(self, step: int) -> float:
        """The factor of a step since the last change."""
        before, since, size = self._state.numpy().tolist()
        if step >= since + self._warmup_steps:
            return float(size)
        return float(before + (size - before) * (step - since) / self._warmup_steps)
