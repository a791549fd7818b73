"""Federated rounds: what they add up to, who takes part in them, and what a lost party costs."""

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig, ElasticConfig, FederatedConfig, LaunchConfig
from edl_horovod.config.tasks import num_lanes, training_batch
from edl_horovod.errors import ConfigError, DataError, PartyError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.values import Array, EvaluationSums
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog
from edl_horovod.job.events import read as read_events
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.job_data import plan_of
from edl_horovod.spec import Mode
from edl_horovod.tasks.federated import (
    LocalVariables,
    Party,
    PartyRounds,
    draw,
    local_config,
    local_names,
    shared_settings,
)
from edl_horovod.tasks.local_rounds import LocalRounds, RoundBatches
from tests import numpy_framework
from tests.jobs import training
from tests.thread_ring import Ring
from tests.unit.tasks.conftest import ZOO
from tests.unit.tasks.ranks import (
    CountingStep,
    assert_all_fail,
    federated_training,
    numbers,
    on_all,
    run_and_see_who_trains,
    run_counted,
)

ADAPTED = """
from tests.zoo.line import LineSpec


class Adapted(LineSpec):
    def adapt(self, records):
        return sum(1 for _ in records)
"""
BATCH, ROUNDS = 12, 4
SIZES = {"north": 60, "south": 36, "west": 100}
"""Records of the parties."""


class Rank:
    """A party's rank: its rounds, and what a synchronous training would do with its records."""

    def __init__(
        self,
        name,
        collectives=None,
        *,
        labels=1.0,
        train=None,
        job_dir="",
        training_id="",
        kind="float64",
        stays=(),
        **federated,
    ):
        self.has_examples = True
        config = FederatedConfig(party=name, rounds=ROUNDS, **federated)
        job = training(BATCH, train, job_dir=str(job_dir), federated=config)
        loaded = load_spec(str(ZOO), "line", params={})
        create_dataset = loaded.spec.create_dataset

        def relabelled(records, mode):
            features, values = create_dataset(records, mode)
            end = None if self.has_examples else 0
            return features[:end], labels * values[:end]

        loaded.spec.create_dataset = relabelled
        loaded.spec.create_model = lambda: np.zeros((4, 1), kind)
        source = numbers(SIZES[name])
        lanes, batch = num_lanes(job), training_batch(job)
        self.plan = plan_of(source, DataConfig(), num_lanes=lanes, is_training=True, **batch)

        def batches():
            return numpy_framework.Batches(source, self.plan, loaded, Mode.TRAINING)

        self.plain_batches = batches()
        self.inner = CountingStep(loaded, self.plain_batches.element_spec, job, collectives)
        self.party = Party(job, training_id)
        rounds = PartyRounds(self.plan, job.federated)
        config = local_config(job.federated)
        self.step = LocalRounds(self.inner, collectives, config, "none", self.party, stays)
        self.batches = RoundBatches(batches, rounds, warmup=self.plain_batches)

    def begin(self, collectives, first=0):
        self.step._collectives = self.inner._collectives = collectives
        self.is_alone = collectives is None
        self.batches.restart(range(1), first, ROUNDS)

    def run(self):
        batch = self.batches.next_batch()
        return self.step.step(batch, wants_change=False, is_alone=self.is_alone, salt=0)

    @property
    def kernel(self):
        return np.array(self.step.model_variables["kernel"].numpy())


def on_each_party(parties, act):
    """What `act(party, world, collectives)` gives on each rank of a ring, at the same time."""
    ring = Ring(len(parties))

    def on(at):
        return act(parties[at], World(rank=at, size=len(parties), generation=1), ring.of(at))

    return on_all(range(len(parties)), on)


def begin(ranks, first=0):
    ring = Ring(len(ranks))
    for number, rank in enumerate(ranks):
        rank.begin(ring.of(number), first)
    return ring


def drawn(number, names, count):
    """The sorted names of the parties that a round's draws choose."""
    return sorted(sorted(names, key=lambda name: draw(0, number, name))[:count])


def trained_alone(*ranks):
    """The kernels of ranks that have each run a round of their own."""
    for rank in ranks:
        rank.begin(None)
        rank.run()
    return [rank.kernel for rank in ranks]


def test_one_party_is_local_training():
    rank = Rank("north", local_epochs=2)
    rank.begin(None)
    for _ in range(ROUNDS):
        rank.run()
    plain = Rank("north")
    plain.plain_batches.restart(range(1), 0, ROUNDS * 2 * plain.plan.steps_per_epoch)
    for _ in range(ROUNDS * 2 * plain.plan.steps_per_epoch):
        batch = plain.plain_batches.next_batch()
        plain.inner.step(batch, wants_change=False, is_alone=True, salt=0)
    np.testing.assert_allclose(rank.kernel, plain.kernel, rtol=1e-12)


def test_rounds_of_one_step_of_sgd_are_synchronous_sgd():
    names = list(SIZES)
    rounds = [Rank(name, local_steps=1, labels=1 + at) for at, name in enumerate(names)]
    begin(rounds)
    plain = [Rank(name, labels=1 + at) for at, name in enumerate(names)]
    begin(plain)
    for rank in plain:
        rank.plain_batches.restart(range(1), 0, ROUNDS)

    def synchronous(rank):
        batch = rank.plain_batches.next_batch()
        return rank.inner.step(batch, wants_change=False, is_alone=False, salt=0)

    for _ in range(ROUNDS):
        losses = on_all(rounds, lambda rank: rank.run().loss)
        expected = on_all(plain, lambda rank: synchronous(rank).loss)
        np.testing.assert_allclose(losses, expected, rtol=1e-12)
        for rank, plain_rank in zip(rounds, plain, strict=True):
            np.testing.assert_allclose(rank.kernel, plain_rank.kernel, rtol=1e-12)


@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_the_mean_is_weighted_by_examples_or_not_at_all(weighting):
    ranks = [Rank(name, weighting=weighting, labels=at) for at, name in enumerate(SIZES)]
    alone = trained_alone(*(Rank(name, labels=at) for at, name in enumerate(SIZES)))
    begin(ranks)
    on_all(ranks, Rank.run)
    weights = list(SIZES.values()) if weighting == "examples" else None
    expected = np.average(alone, axis=0, weights=weights)
    for rank in ranks:
        np.testing.assert_allclose(rank.kernel, expected, rtol=1e-12)


def test_the_proximal_term_is_half_mu_times_the_squared_distance_from_the_rounds_begin():
    mu, rate = 0.7, 0.1
    rank = Rank("south", local_steps=3, proximal_mu=mu)
    plain = Rank("south")
    rank.begin(None)
    plain.plain_batches.restart(range(1), 0, 3 * ROUNDS)
    weights = plain.kernel
    for _ in range(ROUNDS):
        first = weights
        for _ in range(3):
            plain.inner.model.kernel.assign(weights)
            batch = plain.plain_batches.next_batch()
            _, gradient = plain.inner._sums_of(batch)
            weights = weights - rate * (gradient / batch.num_examples + mu * (weights - first))
        rank.run()
        np.testing.assert_allclose(rank.kernel, weights, rtol=1e-12)


def test_a_share_of_the_parties_trains_in_a_round_as_the_draws_say():
    ranks = [Rank(name, fraction=0.5, local_steps=2) for name in SIZES]
    begin(ranks)
    took_part = []
    for number in range(ROUNDS):
        names, num_examples = run_and_see_who_trains(ranks)
        assert names == drawn(number, SIZES, 2)
        assert num_examples == 2 * 2 * BATCH
        took_part += names
    assert set(took_part) == set(SIZES)
    kernels = [rank.kernel for rank in ranks]
    for kernel in kernels:
        np.testing.assert_array_equal(kernel, kernels[0])


def test_a_straggler_contributes_the_steps_that_fit_into_the_rounds_time():
    fast, slow = Rank("north", local_steps=5), Rank("west", local_steps=5, round_seconds=0.5)
    begin([fast, slow])
    slow.inner.seconds = 0.2
    results = on_all([fast, slow], Rank.run)
    num = slow.inner.num_steps
    assert 1 <= num < 5
    assert [sums.local_steps for sums in results] == [5, num]
    assert {sums.num_examples for sums in results} == {(5 + num) * BATCH}
    alone = trained_alone(Rank("north", local_steps=5), Rank("west", local_steps=num))
    expected = np.average(alone, axis=0, weights=[5, num])
    np.testing.assert_allclose(slow.kernel, expected, rtol=1e-12)
    # The next round begins at its own records, as if the party had done all of the first.
    slow.inner.seconds = 0.0
    planned = Rank("west", local_steps=5)
    planned.inner.model.kernel.assign(slow.kernel)
    planned.begin(None, 1)
    planned.step.variables["rounds"].assign(1)
    planned.run()
    before = slow.kernel
    slow.begin(None, 1)
    slow.run()
    assert not np.array_equal(slow.kernel, before)
    np.testing.assert_allclose(slow.kernel, planned.kernel, rtol=1e-12)


def test_a_party_without_a_step_in_time_counts_nothing():
    ranks = [Rank("north"), Rank("south", round_seconds=1e-9), Rank("west")]
    begin(ranks)
    results = on_all(ranks, Rank.run)
    assert [sums.local_steps for sums in results] == [5, 0, 9]
    assert {sums.num_examples for sums in results} == {SIZES["north"] + SIZES["west"]}
    alone = trained_alone(Rank("north"), Rank("west"))
    expected = np.average(alone, axis=0, weights=[SIZES["north"], SIZES["west"]])
    np.testing.assert_allclose(ranks[1].kernel, expected, rtol=1e-12)


def test_a_round_in_which_no_party_has_a_step_changes_nothing():
    ranks = [Rank(name, round_seconds=1e-9) for name in SIZES]
    begin(ranks)
    before = ranks[0].kernel
    results = on_all(ranks, Rank.run)
    assert {sums.num_examples for sums in results} == {0}
    assert all(sums.is_finite for sums in results)
    for rank in ranks:
        np.testing.assert_array_equal(rank.kernel, before)
        assert rank.step.variables["rounds"].numpy() == 1


@pytest.mark.parametrize("fails_in", ["edl.rounds.0.float64", "edl.rounds.0.numbers"])
def test_a_lost_party_costs_the_others_no_local_step(fails_in):
    ranks = [Rank(name, local_steps=2) for name in SIZES]
    ring = begin(ranks)
    on_all(ranks, Rank.run)
    before = [rank.kernel for rank in ranks]
    ring.fails_in = fails_in
    assert_all_fail(ranks, CollectiveFailed)
    for rank, kernel in zip(ranks, before, strict=True):
        np.testing.assert_array_equal(rank.kernel, kernel)
    survivors = ranks[:1] + ranks[2:]
    begin(survivors, 1)
    steps = [rank.inner.num_steps for rank in survivors]
    assert run_counted(survivors) == 2 * 2 * BATCH
    assert [rank.inner.num_steps for rank in survivors] == steps
    # It comes back with the state of the others, and goes on where its own records would be.
    back = ranks[1]
    for name, part in back.step.variables.items():
        part.assign(np.array(survivors[0].step.variables[name].numpy()))
    begin(ranks, 2)
    assert run_counted(ranks) == 3 * 2 * BATCH


def test_a_party_that_has_trained_takes_part_even_if_a_loss_changes_the_draw():
    ranks = [Rank(name, fraction=0.5, local_steps=2) for name in SIZES]
    ring = begin(ranks)
    ring.fails_in = "edl.rounds.0.float64"
    assert_all_fail(ranks, CollectiveFailed)
    by_draw = sorted(ranks, key=lambda rank: draw(0, 0, rank.party.name))
    survivors = by_draw[:2]  # Of two parties, a half is one.
    begin(survivors)
    assert run_counted(survivors) == 2 * 2 * BATCH


def test_what_stays_here_keeps_what_it_learned_in_a_round_that_others_ended():
    calm, lost = (Rank("north", stays=["kernel"]) for _ in range(2))
    begin([calm])
    ring = begin([lost])
    calm.run()
    ring.fails_in = "edl.rounds.0.numbers"  # The last one of a round.
    with pytest.raises(CollectiveFailed):
        lost.run()
    begin([lost], 1)
    lost.step.variables["rounds"].assign(1)  # As the others' state says.
    for rank in (calm, lost):
        rank.run()
    np.testing.assert_array_equal(lost.kernel, calm.kernel)


def test_the_draws_depend_on_seed_round_and_party():
    parties = [f"p{number}" for number in range(400)]
    draws = np.array([[draw(0, number, party) for party in parties] for number in range(5)])
    assert len(np.unique(draws)) == draws.size
    assert draws.min() >= 0
    assert (draws / 2.0**63).mean() == pytest.approx(0.5, abs=0.03)
    assert draw(1, 0, "p0") != draw(0, 0, "p0") == draw(0, 0, "p0")


def test_a_party_whose_values_are_not_finite_does_not_send_them():
    rank = Rank("west", labels=float("nan"))
    rank.begin(None)
    with pytest.raises(PartyError, match="'west'") as raised:
        rank.run()
    assert "round 1" in str(raised.value)
    assert np.isfinite(rank.kernel).all()


KERNEL = "kernel (float64[4, 1])"


@pytest.mark.parametrize(
    ("train", "federated", "texts", "key"),
    [
        ({"learning_rate": 0.5}, {}, [KERNEL], "train.learning_rate"),
        ({}, {"fraction": 0.5}, [KERNEL], "federated.fraction"),
        ({}, {"weighting": "equal"}, [KERNEL], "federated.weighting"),
        ({}, {}, ["kernel (float64[5, 1])"], "kernel"),
        ({}, {}, [KERNEL, "bias (float64[1])"], "bias"),
        ({}, {}, [f"{'layer/' * 60}{KERNEL}"], "layer/layer"),
    ],
)
def test_a_party_that_differs_is_told_in_what_and_the_others_go_on(train, federated, texts, key):
    odd = Rank("south", train=train, **federated).party

    def check(party, world, collectives):
        kind, words = (CollectiveFailed, "south")
        if party is odd:
            kind, words = (PartyError, rf"'south'.*{key}.*'north'")
        with pytest.raises(kind, match=words):
            party.check_fits(world, texts if party is odd else [KERNEL], collectives)

    on_each_party([Rank("north").party, odd, Rank("west").party], check)


@pytest.mark.parametrize("name", ["", "north"])
def test_several_ranks_are_not_one_party(name):
    party = Party(training(BATCH, federated=FederatedConfig(party=name, rounds=ROUNDS)))

    def check(party, world, collectives):
        with pytest.raises(ConfigError, match="one rank"):
            party.check_fits(world, [], collectives)

    on_each_party([party] * 2, check)


def test_parties_have_the_way_of_sending_state_in_common():
    settings = [
        shared_settings(training(BATCH, elastic=ElasticConfig(join_share=share)))
        for share in (0.25, 0.5)
    ]
    assert settings[0] != settings[1]


def test_parties_may_differ_in_their_local_steps():
    ranks = [Rank("north", local_epochs=2), Rank("south", local_steps=5, proximal_mu=0.1)]
    on_each_party(
        [rank.party for rank in ranks],
        lambda party, world, collectives: party.check_fits(world, [], collectives),
    )


NAMES = ["body/kernel", "body/bias", "norm/gamma", "norm/mean", "head/kernel"]
TRAINED = [name for name in NAMES if name != "norm/mean"]


@pytest.mark.parametrize(
    ("patterns", "local"),
    [
        ([], set()),
        (["norm/*"], {"norm/gamma", "norm/mean"}),
        (["norm/*", "head/kernel"], {"norm/gamma", "norm/mean", "head/kernel"}),
        (["*/kernel"], {"body/kernel", "head/kernel"}),
        (["norm/mean"], {"norm/mean"}),
    ],
)
def test_globs_name_the_variables_that_stay(patterns, local):
    assert local_names(patterns, NAMES, TRAINED) == local


@pytest.mark.parametrize(
    ("patterns", "words"),
    [(["norm/*", "Head/*"], "Head/"), (["*"], "share"), (["*/[bk]*", "norm/gamma"], "share")],
)
def test_globs_that_match_nothing_or_all_are_refused(patterns, words):
    with pytest.raises(ConfigError, match=words):
        local_names(patterns, NAMES, TRAINED)


@pytest.fixture
def events(tmp_path):
    with EventLog(tmp_path / "events.jsonl", "test") as log:
        yield log


class Local:
    """A party's own variables, at the beginning of its process."""

    def __init__(self, file, events, *, size=3, training="a"):
        self.head = Array(np.zeros(size, np.float32))
        self.count = Array(np.int64(0))
        variables = {"head": self.head, "count": self.count}
        self.file = LocalVariables(variables, file, training=training, events=events)


def test_local_variables_are_restored_as_they_were_after_the_last_round(tmp_path, events):
    path = tmp_path / "checkpoints" / "local.safetensors"
    first = Local(path, events)
    first.file.restore()
    assert not first.head.numpy().any()
    for number in (1, 2):
        first.head.assign([number, 0.5, -1])
        first.count.assign(number)
        first.file.save(number)
    second = Local(path, events)
    second.file.restore()
    np.testing.assert_array_equal(second.head.numpy(), [2, 0.5, -1])
    assert second.count.numpy() == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_local_variables_of_another_training_or_model_and_damaged_ones_are_refused(
    tmp_path, events
):
    path = tmp_path / "local.safetensors"
    Local(path, events).file.save(1)
    with pytest.raises(ConfigError, match="--party-token"):
        Local(path, events, training="b").file.restore()
    with pytest.raises(DataError, match="head"):
        Local(path, events, size=4).file.restore()
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"local\.safetensors"):
        Local(path, events).file.restore()


def test_a_full_disk_costs_a_file_of_local_variables_and_not_the_training(tmp_path, events):
    (tmp_path / "checkpoints").write_text("in the way")
    Local(tmp_path / "checkpoints" / "local.safetensors", events).file.save(1)
    (recorded,) = read_events(tmp_path / "events.jsonl")
    assert (recorded.event.state, recorded.event.step) == ("failed", 1)
    assert "local_variables" in recorded.event.message


def sharing(name, share):
    federated = FederatedConfig(party=name, rounds=2, share_metrics=share)
    return training(BATCH, federated=federated, validation_data="numbers:4")


def test_the_others_see_the_metrics_of_a_party_only_with_its_consent():
    consents = {"north": True, "south": False, "west": True}
    parties = {name: Party(sharing(name, share)) for name, share in consents.items()}
    losses = {"north": 1.0, "south": 3.0, "west": 5.0}

    def evaluate(party, world, collectives):
        party.check_fits(world, [], collectives)
        sums = EvaluationSums(2.0, losses[party.name], 2.0, np.array([1.0]))
        return party.evaluations(sums, world, collectives)

    for seen in on_each_party(list(parties.values()), evaluate):
        assert {name: sums.loss for name, sums in seen.items()} == {"north": 1.0, "west": 5.0}


@pytest.mark.parametrize("share", [True, False])
def test_a_party_alone_sees_what_it_shares(share):
    sums = EvaluationSums(2.0, 1.0, 2.0, np.array([1.0]))
    alone = World(rank=0, size=1, generation=1)
    seen = Party(sharing("north", share)).evaluations(sums, alone, None)
    assert list(seen) == (["north"] if share else [])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_party_does_not_send_an_evaluation_that_is_not_finite(value):
    party = Party(training(BATCH, federated=FederatedConfig(party="west", rounds=2)))
    party.check_evaluation(3, EvaluationSums(2.0, 1.0, 2.0, np.array([1.0])))
    for loss, metric in ((value, 1.0), (1.0, value)):
        with pytest.raises(PartyError, match="'west'"):
            party.check_evaluation(3, EvaluationSums(2.0, loss, 2.0, np.array([metric])))


@pytest.fixture
def run(run):
    """Run a party alone: `run("federated.rounds=4", training="a")`."""

    def run_party(*settings, training="a"):
        party = ("model_def=line", "federated.party=north")
        identity = WorkerIdentity(host="north", slot=0, training=training)
        return run("train", *party, *settings, data="numbers:60", identity=identity)

    return run_party


def test_a_checkpoint_of_another_federated_training_is_refused(run):
    run("federated.rounds=2")
    assert run("federated.rounds=3", "resume=auto").steps == 3
    with pytest.raises(ConfigError, match="--party-token"):
        run("federated.rounds=4", "resume=auto", training="b")


def test_a_party_keeps_its_batch_size_and_may_change_its_local_epochs(run):
    run("federated.rounds=1", "train.batch_size=12")
    with pytest.raises(ConfigError, match=r"batch_size=6\D+12"):
        run("federated.rounds=2", "train.batch_size=6", "resume=auto")
    settings = ("train.batch_size=12", "federated.local_epochs=2", "resume=auto")
    assert run("federated.rounds=2", *settings).steps == 2


def test_a_party_adapts_no_model_to_its_own_data(run, tmp_path):
    (tmp_path / "adapted.py").write_text(ADAPTED)
    model = (f"model_zoo={tmp_path}", "model_def=adapted")
    with pytest.raises(ConfigError, match="init_from"):
        run(*model, "federated.rounds=2")
    run(*model, f"output={tmp_path}/first", f"job_dir={tmp_path}/first.job", "federated.party=")
    run(*model, "federated.rounds=2", f"init_from={tmp_path}/first")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"local_steps": 2, "local_epochs": 2}, "federated.local_epochs"),
        ({"fraction": 1.5}, "federated.fraction"),
        ({"parties": ["a", "a"]}, "federated.parties"),
        ({"parties": ["a b"]}, "federated.parties"),
        ({"listen": "7100"}, "federated.listen"),
        ({"listen": "127.0.0.1:65536"}, "federated.listen"),
        ({"address": "north:0"}, "federated.address"),
        ({"address": "north:65536"}, "federated.address"),
        ({"train": {"epochs": 2}}, "train.epochs"),
        ({"train": {"max_steps": 2}}, "train.max_steps"),
        ({"train": {"batch_norm": "synchronized"}}, "train.batch_norm"),
        ({"sections": {"launch": LaunchConfig(kind="mpi")}}, "launch.kind"),
        ({"rounds": 0, "fraction": 0.5}, "federated.fraction"),
        ({"rounds": 0, "local_epochs": 2}, "federated.local_epochs"),
        ({"rounds": 0, "local_steps": 2}, "federated.local_steps"),
        ({"rounds": 0, "round_seconds": 2.0}, "federated.round_seconds"),
        ({"round_seconds": -1.0}, "federated.round_seconds"),
        ({"rounds": 0, "local_variables": ["a"]}, "federated.local_variables"),
        ({"rounds": 0, "share_metrics": True}, "federated.share_metrics"),
        ({"share_metrics": True}, "federated.share_metrics needs validation_data"),
        ({"secure_range": 2.0}, "federated.secure_range"),
        ({"sections": {"elastic": ElasticConfig(spares=1)}}, "elastic.spares"),
        ({"rounds": 0, "proximal_mu": 0.1}, "federated.proximal_mu"),
        ({"rounds": 0, "weighting": "equal"}, "federated.weighting"),
    ],
)
def test_settings_that_do_not_fit_a_federated_training_are_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        federated_training(**{"rounds": 2, **settings})


def test_a_quorum_is_a_share_of_all_parties():
    parties = [f"p{number}" for number in range(10)]
    assert FederatedConfig(parties=parties, quorum=0.7).least_parties == 7
    assert FederatedConfig(parties=parties, quorum=0.1).least_parties == 2
