"""Fine-tuning in two phases on a ring: all ranks change over together, and so do newcomers."""

from dataclasses import dataclass

import pytest

from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.ring.state import Counters, RingState
from tests.fitting import (
    SPEC,
    STEPS,
    assert_same_weights,
    by_fit,
    examples,
    loaded_with,
    steps_over,
)
from tests.parallel.agreement import assert_same_everywhere
from tests.zoo.frozen import free


@dataclass
class Calls(Counters):
    """Callbacks make the leader the most advanced."""

    num_calls: int = 0


class Member:
    """One rank, as its process has it: the first, or one that has come in place of it."""

    def __init__(self, world):
        self.world = world
        self.step = KerasStep(loaded_with("frozen", frees_at=1), SPEC, learning_rate=None)
        self.callbacks = self.step.callbacks(num_epochs=2, steps_per_epoch=STEPS, per_step=False)
        self.counters = Calls()
        self.state = RingState(
            {**self.step.variables, **self.callbacks.variables},
            self.counters,
            KerasCollectives(),
            groups=self.step.groups,
            join_share=0.5,
        )

    def begin_epoch(self, epoch):
        if self.world.is_leader:
            self.callbacks.begin_epoch(epoch)
            self.counters.num_calls += 1
        self.state.sync(self.world)

    def train(self):
        def part():
            if self.state.is_streaming:
                self.state.stream_on(hurries=False)
            return self.world.among(self.state.holders(self.world))

        steps_over(self.step, examples(), self.world, part)
        self.state.complete()
        self.counters.step += STEPS


@pytest.mark.long
@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize(
    "joins",
    [
        "before the change",
        "after it",
        "after it, beside the steps",
    ],
)
def test_a_newcomer_learns_what_is_trained(world, small_slices, joins):
    member = Member(world)
    member.counters.step = 0
    member.begin_epoch(0)
    member.train()
    is_new = world.rank == world.size - 1
    if joins == "before the change":
        member = Member(world) if is_new else member
        member.state.sync(world)
    member.begin_epoch(1)
    if joins != "before the change":
        member = Member(world) if is_new else member
        member.state.sync(world, may_stream=joins == "after it, beside the steps")
    assert len(member.step.model.keras.trainable_variables) == 4
    member.train()
    assert_same_everywhere([variable.numpy() for variable in member.state.variables.values()])
    if world.is_leader:
        spec = loaded_with("frozen").spec
        model = spec.create_model()
        for rate in (0.02, 0.005):
            optimizer = spec.create_optimizer()
            optimizer.learning_rate = rate
            model.compile(optimizer, "mse")
            by_fit(model)
            free(model)
        assert_same_weights(member.step.model.keras, model)
