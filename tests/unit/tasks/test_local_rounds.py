"""Local rounds: what they add up to, which records they read, and what a lost rank costs."""

import itertools
import threading
from collections import defaultdict

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig, LaunchConfig, LocalConfig
from edl_horovod.config.tasks import check_start, num_lanes, training_batch
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.packing import NAME
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.job_data import plan_of
from edl_horovod.records.plan import lanes_of_rank
from edl_horovod.spec import Mode
from edl_horovod.tasks.local_rounds import (
    LocalRounds,
    RoundBatches,
    RoundsOfJob,
    plan_of_local_steps,
)
from tests import numpy_framework
from tests.jobs import training
from tests.thread_ring import RankCollectives, Ring
from tests.unit.tasks.conftest import ZOO
from tests.unit.tasks.ranks import CountingStep, assert_all_fail, numbers, on_all

NUM_RECORDS, BATCH, REPLICAS, EPOCHS = 100, 12, 4, 3


class Rank:
    def __init__(self, job, source, collectives, momentum=0.0, kind="float64"):
        loaded = load_spec(str(ZOO), "line", params={})
        loaded.spec.create_optimizer = lambda lr=0.1: (lr, momentum)
        loaded.spec.create_model = lambda: np.zeros((4, 1), kind)
        self.spec = loaded.spec
        lanes, batch = num_lanes(job), training_batch(job)
        self.plan = plan_of(source, DataConfig(), num_lanes=lanes, is_training=True, **batch)
        local = job.train.local
        plan = plan_of_local_steps(self.plan, local.steps) if local.steps else self.plan
        batches = numpy_framework.Batches(source, plan, loaded, Mode.TRAINING)
        self.inner = CountingStep(loaded, batches.element_spec, job, collectives)
        self.step, self.batches = self.inner, batches
        if local.steps:
            self.step = LocalRounds(self.inner, collectives, local, job.train.compression)
            self.batches = RoundBatches(
                lambda: numpy_framework.Batches(source, plan, loaded, Mode.TRAINING),
                RoundsOfJob(self.plan, local.steps),
                warmup=batches,
            )
        self.last = self.plan.spans(1).first_step_of(EPOCHS)
        self.ids = []

    def begin(self, rank, size, first):
        self.lanes = lanes_of_rank(rank, size, self.plan.num_lanes)
        self.batches.restart(self.lanes, first, self.last, self.plan.spans(1))
        self.is_alone = size == 1

    def go_on_as(self, other, ring):
        """Begin with the state of another rank, as a resumed or a joining one does."""
        self.step._collectives = self.inner._collectives = ring
        for name, part in self.step.variables.items():
            part.assign(other.values[name])

    def run_on(self, num_rounds=None):
        """Run this many rounds, or all; the losses."""
        return [self.run().loss for _ in range(self.last if num_rounds is None else num_rounds)]

    def run(self):
        batch = self.batches.next_batch()
        self.ids.append(self.batches.record_ids)
        return self.step.step(
            batch, wants_change=False, is_alone=self.is_alone, salt=self.lanes.start
        )

    @property
    def values(self):
        return {name: np.array(part.numpy()) for name, part in self.step.variables.items()}


@pytest.fixture
def source():
    return numbers(NUM_RECORDS)


def ring_of(job, source, size, *arguments):
    """A ring, and its ranks before their first round."""
    ring = Ring(size)
    ranks = [Rank(job, source, ring.of(rank), *arguments) for rank in range(size)]
    for number, rank in enumerate(ranks):
        rank.begin(number, size, 0)
    return ring, ranks


def train(source, size, *, momentum=0.0, **local):
    """Train on a ring; returns the losses, the variables and the record ids of each rank."""
    train_settings = {"local": LocalConfig(**local)} if local else {}
    job = training(BATCH, train_settings, data_plan=DataConfig(lanes=local.get("replicas", 4)))
    _, ranks = ring_of(job, source, size, momentum)
    losses = on_all(ranks, Rank.run_on)
    return losses, [rank.values for rank in ranks], [rank.ids for rank in ranks]


def test_asking_for_the_metrics_changes_no_variable(source):
    rank = Rank(training(BATCH, {"local": LocalConfig(steps=2, replicas=2)}), source, None)
    empty_step, rate = rank.inner.step, rank.inner.rate

    def step(batch, **arguments):
        rate.assign(rate.numpy() + 1)  # As a step counts the random numbers that it has drawn.
        return empty_step(batch, **arguments)

    rank.inner.step = step
    before = rank.values
    assert list(rank.step.metric_names) == []
    for name, value in rank.values.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rounds_of_one_step_are_synchronous_steps_of_sgd(source, momentum):
    losses, (plain,), _ = train(source, 1, momentum=momentum)
    local_losses, (local,), _ = train(source, 1, momentum=momentum, steps=1, replicas=REPLICAS)
    np.testing.assert_allclose(local_losses[0], losses[0], rtol=1e-9)
    np.testing.assert_allclose(local["kernel"], plain["kernel"], rtol=1e-9)


def assert_same_on_rings(source, sizes, **settings):
    """Rings of these sizes have what one process has; returns its losses and record ids."""
    expected, (alone,), (ids,) = train(source, 1, momentum=0.5, **settings)
    for size in sizes:
        losses, values, parts = train(source, size, momentum=0.5, **settings)
        for rank in range(size):
            np.testing.assert_allclose(losses[rank], expected[0], rtol=1e-9)
            for name, value in values[rank].items():
                np.testing.assert_allclose(value, alone[name], rtol=1e-9, atol=1e-12)
        assert_records(parts, ids)
    return expected[0], ids


def assert_records(parts, ids):
    """In each step the ranks together have read the records of one process."""
    for number, whole in enumerate(ids):
        assert sorted(np.concatenate([rank[number] for rank in parts])) == sorted(whole)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("inner_state", ["average", "reset", "keep"])
@pytest.mark.parametrize("method", ["average", "diloco"])
def test_the_result_does_not_depend_on_the_ring(source, method, inner_state, fragments):
    settings = {"steps": 3, "replicas": REPLICAS, "method": method, "inner_state": inner_state}
    settings["fragments"] = fragments
    _, ids = assert_same_on_rings(source, (2, 3, 4), **settings)
    per_epoch = len(ids) // EPOCHS
    for epoch in range(EPOCHS):
        seen = np.concatenate(ids[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen) == list(range(NUM_RECORDS))


def test_replicas_of_several_steps_differ_from_synchronous_steps_and_from_each_other(source):
    plain, _, _ = train(source, 1)
    losses, values, _ = train(source, 1, momentum=0.5, steps=3, replicas=4, inner_state="keep")
    assert len(losses[0]) == -(-len(plain[0]) // EPOCHS // 3) * EPOCHS
    assert losses[0][-1] < losses[0][0] / 2
    velocities = values[0]["replicas/optimizer/velocity"]
    assert velocities.shape[0] == 4
    assert len({row.tobytes() for row in velocities}) == 4


def test_the_outer_optimizer_is_sgd_with_nesterov_momentum(source):
    settings = {"steps": 2, "replicas": 2, "outer_learning_rate": 0.5, "outer_momentum": 0.8}
    job = training(BATCH, {"local": LocalConfig(method="diloco", **settings)})
    plain_job = training(BATCH, {"local": LocalConfig(steps=2, replicas=2)})
    ours, plain = (Rank(settings, source, Ring(1).of(0)) for settings in (job, plain_job))
    velocity, weights = 0.0, ours.values["kernel"]
    for number in range(4):
        for rank in (ours, plain):
            rank.begin(0, 1, number)
        before = ours.values["kernel"]
        plain.inner.model.kernel.assign(before)
        plain.run()
        change = plain.values["kernel"] - before
        velocity = 0.8 * velocity + change
        weights = before + 0.5 * (change + 0.8 * velocity)
        ours.run()
        np.testing.assert_allclose(ours.values["kernel"], weights, rtol=1e-9)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("inner_state", ["average", "keep"])
@pytest.mark.parametrize(
    ("fragments", "fragment_steps", "ends"),
    [(1, 1, [5]), (2, 3, [2, 5]), (3, 2, [1, 3, 5]), (5, 1, [1, 2, 3, 4, 5])],
)
def test_what_a_fragment_learns_after_its_sum_has_started_does_not_count(
    source, inner_state, fragments, fragment_steps, ends
):
    rate, inner_momentum, outer_rate, outer_momentum = 0.1, 0.5, 0.6, 0.4
    settings = {"steps": 5, "replicas": 2, "method": "diloco", "inner_state": inner_state}
    settings |= {"outer_learning_rate": outer_rate, "outer_momentum": outer_momentum}
    settings |= {"fragments": fragments, "fragment_steps": fragment_steps}
    losses, (ours,), _ = train(source, 1, momentum=inner_momentum, **settings)
    job = training(BATCH, {"local": LocalConfig(**settings)}, data_plan=DataConfig(lanes=2))
    reader = Rank(job, source, None)
    reader.begin(0, 1, 0)
    bounds = [4 * number // fragments for number in range(fragments + 1)]
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    weights, outer_velocity = np.zeros((4, 1)), np.zeros((4, 1))
    velocities = np.zeros((2, 4, 1))
    for number in range(reader.last):
        changes, counts = np.zeros((2, 4, 1)), np.zeros((2, 4, 1))
        for lane, start in enumerate(velocities.copy()):
            w, velocity, count = weights, start, 0
            for place, batch in enumerate(reader.batches.steps_of(number, lane)):
                if batch is None:
                    continue
                x, y = batch.features, batch.labels
                velocity = inner_momentum * velocity - rate * 2 * x.T @ (x @ w - y) / len(x)
                w, count = w + velocity, count + len(x)
                for part, end in zip(parts, ends, strict=True):
                    if place < end:
                        changes[lane, part], counts[lane, part] = (w - weights)[part], count
                        velocities[lane, part] = velocity[part]
        shares = counts / counts.sum(0)
        change = (shares * changes).sum(0)
        if inner_state == "average":
            velocities[:] = (shares * velocities).sum(0)
        outer_velocity = outer_momentum * outer_velocity + change
        weights = weights + outer_rate * (change + outer_momentum * outer_velocity)
    np.testing.assert_allclose(ours["kernel"], weights, rtol=1e-9)
    assert losses[0][-1] < losses[0][0] / 2


class WatchedCollectives(RankCollectives):
    """Tells which sums have ended."""

    def __init__(self, ring, rank):
        super().__init__(ring, rank)
        self.ended = defaultdict(threading.Event)

    def sum(self, values, name):
        total = super().sum(values, name)
        self.ended[name].set()
        return total


@pytest.mark.timeout(60)
def test_the_sum_of_a_fragment_travels_while_the_next_local_steps_run(source):
    job = training(BATCH, {"local": LocalConfig(steps=4, replicas=2, fragments=3)})
    ring, have_arrived = Ring(2), []
    ranks = [Rank(job, source, WatchedCollectives(ring, rank)) for rank in range(2)]

    def wait_in(rank):
        step, ended, numbers = rank.inner.step, rank.step._collectives.ended, itertools.count()

        def waiting_step(batch, **arguments):
            number = next(numbers)
            for fragment in range(number - 1):
                have_arrived.append(ended[f"edl.rounds.{fragment}.numbers"].wait(20))
            return step(batch, **arguments)

        rank.inner.step = waiting_step

    for number, rank in enumerate(ranks):
        rank.begin(number, 2, 0)
        assert list(rank.step.metric_names) == []  # It takes an empty step.
        wait_in(rank)
    on_all(ranks, Rank.run)
    assert have_arrived == [True] * 6


def assert_values(ranks, expected):
    for rank, values in zip(ranks, expected, strict=True):
        for name, value in rank.values.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def test_an_error_of_the_user_ends_the_round_and_its_sums(source):
    job = training(BATCH, {"local": LocalConfig(steps=4, replicas=2, fragments=4)})
    _, ranks = ring_of(job, source, 2)
    for rank in ranks:
        step = rank.inner.step

        def failing_step(batch, rank=rank, step=step, **arguments):
            if rank.inner.num_steps == 3:
                raise UserCodeError("the model fails")
            return step(batch, **arguments)

        rank.inner.step = failing_step
    before = [rank.values for rank in ranks]
    assert_all_fail(ranks, UserCodeError)
    assert_values(ranks, before)
    assert not [thread for thread in threading.enumerate() if "sums" in thread.name]


WARMUPS = [1, 9, 14, 20]
"""Of 9 steps in an epoch; one of them ends with it."""


def test_a_warmup_of_all_steps_is_plain_training(source):
    for size in (1, 3):
        losses, plain, ids = train(source, size, momentum=0.5)
        rounds = {"steps": 3, "replicas": REPLICAS, "method": "diloco", "inner_state": "keep"}
        rounds["warmup_steps"] = len(losses[0])
        warm_losses, warm, warm_ids = train(source, size, momentum=0.5, **rounds)
        np.testing.assert_allclose(warm_losses, losses, rtol=1e-9)
        np.testing.assert_allclose(warm[0]["kernel"], plain[0]["kernel"], rtol=1e-9)
        for warm_steps, steps in zip(warm_ids, ids, strict=True):
            assert list(map(list, warm_steps)) == list(map(list, steps))


@pytest.mark.long(after=1)
@pytest.mark.parametrize("inner_state", ["average", "reset", "keep"])
@pytest.mark.parametrize("warmup", WARMUPS)
def test_with_a_warmup_the_result_does_not_depend_on_the_ring(source, warmup, inner_state):
    settings = {"steps": 4, "replicas": REPLICAS, "method": "diloco", "inner_state": inner_state}
    settings["warmup_steps"] = warmup
    plain, _, _ = train(source, 1, momentum=0.5)
    losses, ids = assert_same_on_rings(source, (2, 4), **settings)
    np.testing.assert_allclose(losses[:warmup], plain[0][:warmup], rtol=1e-9)
    per_epoch = np.concatenate(ids).reshape(EPOCHS, NUM_RECORDS)
    assert (np.sort(per_epoch) == np.arange(NUM_RECORDS)).all()


@pytest.mark.parametrize("inner_state", ["average", "keep", "reset"])
def test_replicas_begin_the_first_round_with_the_optimizers_state_of_the_warmup(
    source, inner_state
):
    # With SGD, rounds of one step are synchronous steps as long as the velocity continues.
    losses, (plain,), _ = train(source, 1, momentum=0.5)
    settings = {"steps": 1, "replicas": REPLICAS, "inner_state": inner_state, "warmup_steps": 5}
    warm_losses, (warm,), _ = train(source, 1, momentum=0.5, **settings)
    same = slice(0, 7) if inner_state == "reset" else slice(None)  # Up to the second round's start.
    np.testing.assert_allclose(warm_losses[0][same], losses[0][same], rtol=1e-9)
    is_same = np.allclose(warm["kernel"], plain["kernel"], rtol=1e-9)
    assert is_same == (inner_state != "reset")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("inner_state", ["average", "keep"])
@pytest.mark.parametrize("done", [1, 3, 4, 5])
def test_a_training_resumes_within_the_warmup_and_at_its_border(source, done, inner_state):
    settings = {"steps": 3, "replicas": REPLICAS, "inner_state": inner_state, "warmup_steps": 4}
    expected, (whole,), _ = train(source, 1, momentum=0.5, **settings)
    job = training(BATCH, {"local": LocalConfig(**settings)})
    ring = Ring(2)
    before = Rank(job, source, None, 0.5)
    before.begin(0, 1, 0)
    losses = before.run_on(done)
    ranks = [Rank(job, source, None, 0.5) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.go_on_as(before, ring.of(number))
        rank.begin(number, 2, done)
    later = on_all(ranks, lambda rank: rank.run_on(rank.last - done))
    for rank, later_losses in zip(ranks, later, strict=True):
        np.testing.assert_allclose([*losses, *later_losses], expected[0], rtol=1e-9)
        np.testing.assert_allclose(rank.values["kernel"], whole["kernel"], rtol=1e-9)


def run_until_a_loss(ranks, ring, number, fails_in):
    """Run some rounds, and one that a collective breaks, which leaves no trace."""
    on_all(ranks, lambda rank: rank.run_on(number))
    before = [rank.values for rank in ranks]
    ring.fails_in = fails_in
    assert_all_fail(ranks, CollectiveFailed)
    # Before the replicas are computed, it is another phase in which a rank waits for the others.
    assert all(
        (rank.step.waited_seconds() > 0) == (fails_in != "edl.rounds.done") for rank in ranks
    )
    assert_values(ranks, before)


def lose_a_rank(ring, ranks, number, fails_in, steps_again, alone):
    """Lose a rank of four in this round; the others repeat some steps, and have what one has."""
    run_until_a_loss(ranks, ring, number, fails_in)
    survivors, ring = ranks[:1] + ranks[2:], Ring(3)
    for rank_number, rank in enumerate(survivors):
        rank.step._collectives = rank.inner._collectives = ring.of(rank_number)
        rank.begin(rank_number, 3, number)
        rank.inner.num_steps, rank.ids = 0, []
    on_all(survivors, Rank.run)
    assert sum(rank.inner.num_steps for rank in survivors) == steps_again
    on_all(survivors, lambda rank: rank.run_on(rank.last - number - 1))
    for rank in survivors:
        np.testing.assert_allclose(rank.values["kernel"], alone["kernel"], rtol=1e-9)
    return survivors


@pytest.mark.parametrize(
    ("number", "fails_in", "steps_again"),
    [(1, NAME, 3), (2, "edl.rounds.done", 12), (2, "edl.rounds.0.float64", 3)],
)
def test_a_loss_in_the_warmup_or_in_the_first_round(source, number, fails_in, steps_again):
    settings = {"steps": 3, "replicas": REPLICAS, "inner_state": "keep", "warmup_steps": 2}
    job = training(BATCH, {"local": LocalConfig(**settings)})
    _, (alone,), (ids,) = train(source, 1, momentum=0.5, **settings)
    survivors = lose_a_rank(*ring_of(job, source, 4, 0.5), number, fails_in, steps_again, alone)
    assert_records([rank.ids for rank in survivors], ids[number:])


@pytest.mark.parametrize("inner_state", ["average", "keep"])
def test_rounds_go_on_after_one_whose_examples_are_all_filtered_out(source, inner_state):
    settings = {"steps": 2, "replicas": REPLICAS, "inner_state": inner_state, "warmup_steps": 1}
    rank = Rank(training(BATCH, {"local": LocalConfig(**settings)}), source, None, 0.5)
    rank.begin(0, 1, 0)
    assert rank.run().num_examples == BATCH
    weights, velocity = rank.values["kernel"], rank.values["optimizer/velocity"]
    create_dataset = rank.spec.create_dataset
    rank.spec.create_dataset = lambda records, mode: tuple(
        part[:0] for part in create_dataset(records, mode)
    )
    assert rank.run().num_examples == 0
    np.testing.assert_array_equal(rank.values["kernel"], weights)
    if inner_state == "keep":
        for of_replica in rank.values["replicas/optimizer/velocity"]:
            np.testing.assert_array_equal(of_replica, velocity)
    rank.spec.create_dataset = create_dataset
    assert rank.run().num_examples == 2 * BATCH
    assert not np.array_equal(rank.values["kernel"], weights)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("fragments", "fails_in"),
    [
        (1, "edl.rounds.0.float64"),
        (1, "edl.rounds.0.numbers"),
        (2, "edl.rounds.0.float64"),
        (2, "edl.rounds.0.numbers"),
        (2, "edl.rounds.1.numbers"),
    ],
)
def test_after_a_loss_only_the_replicas_of_the_lost_rank_are_trained_again(
    source, fragments, fails_in
):
    settings = {"steps": 3, "replicas": REPLICAS, "fragments": fragments}
    settings["fragment_steps"] = fragments
    job = training(BATCH, {"local": LocalConfig(**settings)})
    _, (alone,), _ = train(source, 1, **settings)
    # The steps again are those of one replica.
    lose_a_rank(*ring_of(job, source, 4), 1, fails_in, 3, alone)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize(
    ("compression", "tolerance"), [("bf16", 0.03), ("fp16", 0.005), ("int8", 0.05)]
)
def test_with_compressed_changes_the_ring_shows_no_more_than_their_rounding(
    source, compression, tolerance, fragments
):
    settings = {"method": "diloco", "outer_momentum": 0.3, "fragments": fragments}
    local = LocalConfig(steps=3, replicas=REPLICAS, **settings)
    job = training(BATCH, {"local": local, "compression": compression})
    curves = []
    for size in (1, 2, 4):
        _, ranks = ring_of(job, source, size, 0.5, "float32")
        losses = on_all(ranks, Rank.run_on)
        np.testing.assert_array_equal(losses, losses[:1] * size)
        curves.append(losses[0])
    assert not np.allclose(curves[1], curves[0], rtol=1e-6)
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=tolerance)


ROUNDS = LocalConfig(steps=2)


@pytest.mark.parametrize(
    ("key", "train_settings", "settings"),
    [
        ("local.replicas", {"local": LocalConfig(steps=2, replicas=5)}, {}),
        ("data_plan.lanes", {"local": ROUNDS}, {"data_plan": DataConfig(lanes=12)}),
        ("batch_norm", {"local": ROUNDS, "batch_norm": "synchronized"}, {}),
        ("train.compression", {"compression": "int8"}, {}),
    ],
)
def test_settings_that_do_not_fit_rounds_are_refused(key, train_settings, settings):
    with pytest.raises(ConfigError, match=key):
        training(BATCH, train_settings, **settings)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        # The sums of all fragments must start within the round.
        ({"fragments": 2}, "local.fragment"),
        ({"fragments": 0}, "local.fragment"),
        ({"steps": 8, "fragments": 3, "fragment_steps": 4}, "local.fragment"),
        ({"steps": 8, "fragment_steps": 0}, "local.fragment"),
        # A warm-up needs rounds after it.
        ({"warmup_steps": 3}, "local.warmup_steps"),
    ],
)
def test_rounds_that_cannot_be_are_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        LocalConfig(**settings)


def test_more_ranks_than_replicas_are_refused_with_the_setting_that_allows_more():
    launch = LaunchConfig(np=6)
    job = training(BATCH, {"local": LocalConfig(steps=2, replicas=4)}, launch=launch)
    with pytest.raises(ConfigError, match=r"local\.replicas"):
        check_start(job)
