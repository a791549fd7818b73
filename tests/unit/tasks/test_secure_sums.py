"""Secure sums: their total, what a party sends for it, and that no sum is repeated."""

import errno
import json
import logging
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl_horovod.config.schema import FederatedConfig, JobConfig
from edl_horovod.errors import ConfigError, JobFailed, OutputError, PartyError
from edl_horovod.files import whole_file
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.values import EvaluationSums
from edl_horovod.frameworks.world import World
from edl_horovod.tasks.secure_sums import (
    SecureSums,
    from_fixed_point,
    from_limbs,
    to_fixed_point,
    to_limbs,
)
from tests.thread_ring import Ring
from tests.unit.tasks.ranks import (
    assert_all_fail,
    federated_training,
    on_all,
    run_and_see_who_trains,
    run_counted,
)
from tests.unit.tasks.test_federated import BATCH, ROUNDS, SIZES, Rank, drawn

RANGE = 32.0
MORE = ["north", "south", "west", "north", "south", "west", "north"]
"""Whose records each party of a larger ring has."""


class RecordingRing(Ring):
    """Records what each rank sends into sums, and fails on some ranks alone."""

    def __init__(self, size):
        super().__init__(size)
        self.sent = []
        self.fails_on = frozenset(range(size))

    def exchange(self, rank, value, name):
        self.sent.append((rank, name, value))
        try:
            return super().exchange(rank, value, name)
        except CollectiveFailed:
            if rank in self.fails_on:
                raise
            return [self._rows[other] for other in sorted(self._rows)]

    def rows_of(self, rank, name):
        return [value for sender, sent, value in self.sent if (sender, sent) == (rank, name)]


class Parties:
    """Parties whose directories outlive their processes."""

    def __init__(self, folder, names=tuple(SIZES), **settings):
        self._folder, self._names, self._settings = folder, names, settings
        self.ranks = [self.start(at) for at in range(len(names))]

    def start(self, at, **settings):
        folder = self._folder / str(at)
        folder.mkdir(exist_ok=True)
        settings = {"labels": 1 + at, "secure_sums": True, **self._settings, **settings}
        rank = Rank(self._names[at], job_dir=folder, **settings)
        rank.party.name = f"{self._names[at]}{at}"
        return rank

    def begin(self, first=0, only=None):
        self.present = self.ranks if only is None else [self.ranks[at] for at in only]
        ring = RecordingRing(len(self.present))
        for number, rank in enumerate(self.present):
            rank.begin(ring.of(number), first)
        return ring

    def run(self):
        return on_all(self.present, Rank.run)

    def run_counted(self):
        """Run a round; the number of its examples, of which all parties have the same."""
        return run_counted(self.present)

    def start_again(self, **settings):
        """New processes of all parties, which begin in one ring."""
        self.ranks = [self.start(at, **settings) for at in range(len(self.ranks))]
        return self.begin()

    def fail(self):
        """Run a round; returns the ranks that got through it."""
        through = []
        with ThreadPoolExecutor(len(self.present)) as pool:
            futures = [(rank, pool.submit(rank.run)) for rank in self.present]
            for rank, future in futures:
                try:
                    future.result()
                    through.append(rank)
                except CollectiveFailed:
                    pass
        return through

    @property
    def kernels(self):
        return [rank.kernel for rank in self.ranks]


def copy_state(source, targets):
    """Do what a ring's sync does."""
    values = {name: np.array(part.numpy()) for name, part in source.step.variables.items()}
    for rank in targets:
        for name, part in rank.step.variables.items():
            part.assign(values[name])


def skipped(caplog):
    return [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("size", range(3, 8))
def test_masks_cancel_whatever_the_numbers(tmp_path, kind, size):
    random, bits = np.random.default_rng(size), np.iinfo(kind)
    rows = random.integers(bits.min, bits.max, (size + 1, 1000, 3), kind, endpoint=True)
    rows[size] = 0  # One rank does not contribute.
    ring = RecordingRing(size + 1)

    def run(rank):
        secure = SecureSums(RANGE, note=tmp_path / f"{rank}.json", training="a")
        collectives = ring.of(rank)
        masks = secure.masks(0, contributes=rank < size, collectives=collectives)
        return [
            collectives.sum(masks.add_to(values), "sums") for values in (rows[rank], rows[rank])
        ]

    for totals in on_all(range(size + 1), run):
        for total in totals:
            np.testing.assert_array_equal(total, rows.sum(0, dtype=kind))
    for rank in range(size):
        first, second = ring.rows_of(rank, "sums")
        assert first.dtype == kind
        assert (first == rows[rank]).mean() < 0.01
        assert (first == second).mean() < 0.01
        # Nor does another rank's mask alone reveal it: each two have one of their own.
        for other in range(rank):
            both = (first, ring.rows_of(other, "sums")[0])
            shown = sum(numbers.view(f"u{first.itemsize}") for numbers in both)
            assert (shown.view(kind) == rows[rank] + rows[other]).mean() < 0.01


def test_a_masked_number_is_uniform_whatever_it_hides(tmp_path):
    count = 200_000
    hidden = [np.full(count, 7), np.arange(count), np.zeros(count)]
    hidden = [numbers.astype(np.int32) for numbers in hidden]
    ring = RecordingRing(3)

    def run(rank):
        secure = SecureSums(RANGE, note=tmp_path / f"{rank}.json", training="a")
        for number in range(2):
            masks = secure.masks(number, contributes=True, collectives=ring.of(rank))
            ring.of(rank).sum(masks.add_to(hidden[rank]), "sums")

    on_all(range(3), run)
    for rank in range(3):
        rows = ring.rows_of(rank, "sums")
        for row in rows:
            bits = np.unpackbits(row.view(np.uint8)).mean()
            assert bits == pytest.approx(0.5, abs=0.002)
            counts = np.bincount(row.view(np.uint32) >> 24, minlength=256)
            # Chi-squared with 255 degrees of freedom: mean 255, standard deviation 22.6.
            assert ((counts - count / 256) ** 2 / (count / 256)).sum() < 255 + 6 * 22.6
        assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.015
        assert abs(np.corrcoef(rows[0], hidden[1])[0, 1]) < 0.015


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_fixed_point_numbers_are_rounded_by_no_more_than_is_said_and_do_not_overflow(kind):
    size, bound = 7, 3.5e5
    random = np.random.default_rng(1)
    values = random.normal(size=(size, 50_000))
    values *= bound / np.abs(values).sum(0)
    values[:, 0], values[:, 1], values[:, 2] = 0, 0, bound / size
    values[0, 0], values[0, 1] = bound, -bound
    values = values.astype(kind)
    integers = np.array([to_fixed_point(row, bound) for row in values])
    total = integers.sum(0, dtype=integers.dtype)
    exact = values.astype(np.longdouble).sum(0)
    bits = np.dtype(kind).itemsize * 8
    error = np.abs(from_fixed_point(total, bound).astype(np.longdouble) - exact)
    # That of the numbers' own type.
    rounding = np.abs(values).sum(0) * float(np.finfo(kind).eps)
    assert (error <= size * bound / 2.0 ** (bits - 1) + rounding).all()
    assert np.abs(total.astype(float)).max() <= 1.001 * 2.0 ** (bits - 2)


def test_numbers_are_summed_as_exactly_as_without_masks():
    rows = np.array(
        [
            [0.1, 1e300, -1e300, 3.0, 1e-20, math.pi, 2.0**60 + 256, np.inf, 0.0],
            [0.2, 1e-10, 1e300, -3.0, 2e-20, -math.pi * 1e9, 1.0, 1.0, np.nan],
            [0.3, -5e299, 7.0, 0.5, 3e-20, math.pi * 1e18, -1.0, 1.0, 1.0],
        ]
    )
    totals = from_limbs(np.sum([to_limbs(row) for row in rows], 0))
    finite = np.isfinite(rows).all(0)
    expected = [math.fsum(column) for column in rows.T[finite]]
    np.testing.assert_allclose(totals[finite], expected, rtol=1e-15, atol=2.0**-90)
    assert np.isnan(totals[~finite]).all()
    for row in rows:
        assert from_limbs(to_limbs(row))[3] == row[3]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("weighting", ["examples", "equal"])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_the_mean_is_that_of_plain_sums_within_the_rounding(tmp_path, kind, weighting, size):
    settings = {"weighting": weighting, "kind": kind}
    plain, secure = (
        Parties(tmp_path, MORE[:size], **settings, secure_sums=is_secure)
        for is_secure in (False, True)
    )
    plain.begin()
    secure.begin()
    rounding = size * RANGE / 2.0 ** (31 if kind == "float32" else 63)
    for number in range(ROUNDS):
        ours, expected = secure.run(), plain.run()
        assert [s.num_examples for s in ours] == [s.num_examples for s in expected]
        np.testing.assert_allclose(ours[0].loss, expected[0].loss, rtol=1e-5)
        # What is left of a round's rounding becomes smaller with each round that follows.
        for kernel in secure.kernels:
            bound = (number + 1) * rounding + 4 * np.finfo(kind).eps
            np.testing.assert_allclose(kernel, plain.kernels[0], rtol=0, atol=bound)
            np.testing.assert_array_equal(kernel, secure.kernels[0])


def test_what_a_party_sends_differs_each_time_and_shows_nothing_of_it(tmp_path):
    rows = []
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        parties = Parties(folder, kind="float32")
        ring = parties.begin()
        parties.run()
        names = {name for _, name, _ in ring.sent}
        kinds = ("draws", "keys", "numbers", "int32")
        assert names == {f"edl.rounds.{kind}" for kind in kinds}
        rows.append({name: ring.rows_of(0, name)[0] for name in names - {"edl.rounds.draws"}})
        for name in ("edl.rounds.numbers", "edl.rounds.int32"):
            for sender in range(3):
                (row,) = ring.rows_of(sender, name)
                assert row.dtype.kind == "i"
                # Numbers and changes are small beside the modulus; zeros are masked, too.
                assert np.abs(row.astype(float)).max() > 2.0 ** (8 * row.itemsize - 9)
                assert (row == 0).sum() == 0
    for name, row in rows[0].items():
        if name != "edl.rounds.keys":
            assert not (row == rows[1][name]).any()
    assert rows[0]["edl.rounds.keys"][1:] != rows[1]["edl.rounds.keys"][1:]


@pytest.mark.parametrize("fails_in", ["edl.rounds.numbers", "edl.rounds.int64"])
def test_a_round_whose_sum_a_loss_has_broken_is_skipped_by_all(tmp_path, caplog, fails_in):
    parties = Parties(tmp_path, MORE[:4], local_steps=2)
    ring = parties.begin()
    parties.run()
    before = parties.kernels[0]
    ring.fails_in = fails_in
    assert parties.fail() == []
    steps = [rank.inner.num_steps for rank in parties.ranks]
    parties.begin(1, only=[0, 2, 3])
    results = parties.run()
    assert {sums.num_examples for sums in results} == {0}
    assert all(sums.is_finite for sums in results)
    assert [rank.inner.num_steps for rank in parties.ranks] == steps
    for at in (0, 2, 3):
        np.testing.assert_array_equal(parties.kernels[at], before)
    assert len(skipped(caplog)) == 3
    assert all("round 2 " in message for message in skipped(caplog))
    # The training goes on, and the party that was lost comes back.
    assert parties.run_counted() == 3 * 2 * BATCH
    parties.ranks[1] = parties.start(1)
    copy_state(parties.ranks[0], [parties.ranks[1]])
    parties.begin(3)
    assert parties.run_counted() == 4 * 2 * BATCH
    assert len(skipped(caplog)) == 3
    for kernel in parties.kernels:
        np.testing.assert_array_equal(kernel, parties.kernels[0])


@pytest.mark.parametrize("fails_in", ["edl.rounds.draws", "edl.rounds.keys"])
def test_a_party_that_is_lost_before_the_sum_costs_the_others_nothing(tmp_path, caplog, fails_in):
    parties = Parties(tmp_path, MORE[:4], local_steps=2)
    ring = parties.begin()
    ring.fails_in = fails_in
    assert parties.fail() == []
    steps = [rank.inner.num_steps for rank in parties.ranks]
    parties.begin(only=[0, 1, 3])
    assert parties.run_counted() == 3 * 2 * BATCH
    if fails_in == "edl.rounds.keys":
        assert [rank.inner.num_steps for rank in parties.ranks] == steps
    assert skipped(caplog) == []


def test_a_round_that_one_party_has_completed_is_done_for_all(tmp_path, caplog):
    parties = Parties(tmp_path, MORE[:4], local_steps=2)
    ring = parties.begin()
    ring.fails_in, ring.fails_on = "edl.rounds.int64", {1, 2, 3}
    assert parties.fail() == [parties.ranks[0]]
    # The ring that forms next has the state of the most advanced rank.
    copy_state(parties.ranks[0], parties.ranks[1:])
    parties.begin(1, only=[0, 2, 3])
    assert parties.run_counted() == 3 * 2 * BATCH
    assert skipped(caplog) == []


def test_parties_that_were_all_lost_do_not_repeat_a_sum(tmp_path, caplog):
    parties = Parties(tmp_path, MORE[:4], training_id="a", local_steps=2)
    parties.begin()
    parties.run()
    parties.run()
    # Their checkpoint is older than their last sum, and one of them does not come back.
    parties.ranks = [parties.start(at) for at in range(4)]
    parties.begin(only=[0, 1, 2])
    assert [{sums.num_examples for sums in parties.run()} for _ in range(3)] == [
        {0},
        {0},
        {3 * 2 * BATCH},
    ]
    assert len(skipped(caplog)) == 6
    # Another training has nothing to do with that.
    parties.start_again(training_id="b")
    assert parties.run_counted() == 4 * 2 * BATCH
    # Nor does it make a party forget.
    parties.start_again()
    assert parties.run_counted() == 0


def test_a_training_whose_sums_were_all_sent_is_refused_instead_of_skipped(tmp_path):
    parties = Parties(tmp_path, training_id="a", local_steps=1)
    parties.begin()
    for _ in range(ROUNDS):
        parties.run()
    parties.start_again()
    assert_all_fail(parties.ranks, ConfigError, match="edl federate")


def test_one_party_that_knows_of_the_sum_is_enough(tmp_path, caplog):
    parties = Parties(tmp_path, local_steps=2)
    parties.begin()
    parties.run()
    parties.ranks[0] = parties.start(0)
    parties.ranks[1:] = [parties.start(at, training_id="fresh") for at in (1, 2)]
    parties.begin()
    assert parties.run_counted() == 0
    assert len(skipped(caplog)) == 3


def test_a_note_that_cannot_be_written_keeps_the_party_from_sending(tmp_path, monkeypatch):
    secure = SecureSums(RANGE, note=tmp_path / "note.json", training="a")

    def fail(*arguments, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Three:
        def gather_rows(self, row, name):
            return np.array([row, [1, 1, 2, 3, 4], [1, 5, 6, 7, 8]])

    monkeypatch.setattr(whole_file, "write_bytes", fail)
    with pytest.raises(OutputError, match="No space"):
        secure.masks(3, contributes=True, collectives=Three())


def test_a_damaged_note_ends_the_party_before_it_sends(tmp_path):
    note = tmp_path / "note.json"
    for text, named in (("{", r"note\.json"), (json.dumps({"training": "a"}), "round")):
        note.write_text(text)
        with pytest.raises(JobFailed, match=named):
            SecureSums(RANGE, note=note, training="a")


def test_a_round_with_examples_of_two_parties_alone_is_skipped(tmp_path, caplog):
    parties = Parties(tmp_path, local_steps=2)
    ring = parties.begin()
    parties.ranks[1].has_examples = False
    before = parties.kernels
    assert parties.run_counted() == 0
    for kernel, old in zip(parties.kernels, before, strict=True):
        np.testing.assert_array_equal(kernel, old)
    assert len(skipped(caplog)) == 3
    for rank in range(3):
        (row,) = ring.rows_of(rank, "edl.rounds.numbers")
        assert not row.any()
    parties.ranks[1].has_examples = True
    assert parties.run_counted() == 3 * 2 * BATCH


@pytest.mark.parametrize("size", [3, 4])
def test_a_party_that_is_late_with_nothing_counts_as_none(tmp_path, caplog, size):
    parties = Parties(tmp_path, MORE[:size], local_steps=2)
    parties.ranks[1] = parties.start(1, round_seconds=1e-9)
    ring = parties.begin()
    expected = 3 * 2 * BATCH if size == 4 else 0
    assert parties.run_counted() == expected
    assert len(skipped(caplog)) == (0 if size == 4 else 3)
    (row,) = ring.rows_of(1, "edl.rounds.numbers")
    assert not row.any()


def test_three_parties_train_in_a_round_at_least(tmp_path):
    parties = Parties(tmp_path, MORE[:5], fraction=0.2, local_steps=2)
    parties.begin()
    for number in range(ROUNDS):
        trained, num_examples = run_and_see_who_trains(parties.ranks)
        assert num_examples == 3 * 2 * BATCH
        assert trained == drawn(number, [rank.party.name for rank in parties.ranks], 3)


@pytest.mark.parametrize("size", [1, 2])
def test_a_ring_of_fewer_than_three_parties_is_refused_by_all(tmp_path, size):
    parties = Parties(tmp_path)
    parties.begin(only=range(size))
    if size == 1:
        parties.ranks[0].begin(None)
    assert_all_fail(parties.present, ConfigError, match="min_parties")


def test_a_wish_for_another_ring_reaches_all_in_every_round(tmp_path):
    parties = Parties(tmp_path, MORE[:4], fraction=0.5, local_steps=1)
    parties.begin()

    def run(wishing):
        def step(rank):
            batch = rank.batches.next_batch()
            return rank.step.step(batch, wants_change=rank is wishing, is_alone=False, salt=0)

        return {sums.wants_change for sums in on_all(parties.ranks, step)}

    assert run(None) == {False}
    for rank in parties.ranks:
        assert run(rank) == {True}
    parties.begin()
    # In a round that is skipped as well.
    parties.ranks[2].party.secure_sums.last = lambda kind: ROUNDS + 1
    assert run(parties.ranks[1]) == {True}


def evaluated(parties, ring, number, numbers):
    """What each party makes of an evaluation; each has its number as loss and as metric."""

    def evaluate(at):
        party, collectives = parties[at].party, ring.of(at)
        world = World(rank=at, size=len(parties), generation=1)
        if party.skips_evaluation(number, world, collectives):
            return "skipped"
        value = numbers[at]
        sums = EvaluationSums(float(bool(value)), value, 1.0, np.array([value / 3, 1.0]))
        return party.secure_evaluation(number, sums, party.secure_sums, collectives)

    return on_all(range(len(parties)), evaluate)


def test_evaluations_are_summed_behind_masks(tmp_path):
    parties, ring = Parties(tmp_path, MORE[:4]).ranks, RecordingRing(4)
    numbers = [1.25, -3e9, 0.1, 0.0]  # The last one has no examples.
    for sums in evaluated(parties, ring, 2, numbers):
        assert (sums.num_examples, sums.loss) == (3.0, math.fsum(numbers))
        np.testing.assert_allclose(sums.metrics, [math.fsum(numbers) / 3, 4.0], rtol=1e-15)
    for at in range(3):
        (sent,) = ring.rows_of(at, "edl.evaluate")
        sums = EvaluationSums(1.0, numbers[at], 1.0, np.array([numbers[at] / 3, 1.0]))
        assert (sent == to_limbs(sums.vector)).mean() < 0.01


def test_an_evaluation_is_sent_once_also_by_a_party_that_was_started_again(tmp_path, caplog):
    started = Parties(tmp_path, MORE[:4])
    numbers = [1.0, 2.0, 3.0, 4.0]
    evaluated(started.ranks, RecordingRing(4), 2, numbers)
    survivors = [started.start(at) for at in range(3)]
    assert evaluated(survivors, RecordingRing(3), 2, numbers) == ["skipped"] * 3
    assert len(skipped(caplog)) == 3
    assert [sums.loss for sums in evaluated(survivors, RecordingRing(3), 3, numbers)] == [6] * 3
    # Rounds have notes of their own.
    assert {rank.party.secure_sums.last("round") for rank in survivors} == {-1}


def test_fewer_than_three_parties_with_examples_do_not_evaluate(tmp_path, caplog):
    parties = Parties(tmp_path, MORE[:3]).ranks
    ring = RecordingRing(3)
    assert evaluated(parties, ring, 2, [1.0, 0.0, 2.0]) == [None] * 3
    assert not ring.rows_of(0, "edl.evaluate")
    assert len(skipped(caplog)) == 3


class AmongThree:
    """A party sees two others that never come to the sum."""

    def gather_rows(self, row, name):
        assert name == "edl.rounds.draws", "it must not go on to the sum"
        return np.array([row, row, row])


def test_a_party_whose_change_is_beyond_the_range_does_not_send_it(tmp_path, caplog):
    rank = Rank("west", job_dir=tmp_path, secure_sums=True, secure_range=0.01, labels=50.0)
    rank.begin(AmongThree())
    with caplog.at_level(logging.WARNING), pytest.raises(PartyError, match="'west'") as raised:
        rank.run()
    assert all(text in str(raised.value) for text in ("kernel", "secure_range=0.01"))
    # The error is shown to the others; how large the change is stays in the party's own log.
    assert "kernel" in caplog.text
    assert rank.party.secure_sums.last("round") == -1


def test_a_learning_rate_may_change_by_more_than_the_range(tmp_path):
    """So do the counters of schedules, which go up with each local step."""
    parties = Parties(tmp_path, labels=0.0, local_steps=2)  # So the weights do not change.
    parties.begin()
    rates = [rank.inner.rate for rank in parties.ranks]
    for rank in parties.ranks:
        step = rank.inner.step

        def raising_step(batch, rate=rank.inner.rate, step=step, **arguments):
            rate.assign(rate.numpy() + 1000 * (batch is not None))
            return step(batch, **arguments)

        rank.inner.step = raising_step
    first = float(rates[0].numpy())
    parties.run()
    assert [float(rate.numpy()) for rate in rates] == pytest.approx([first + 2000] * 3, rel=1e-15)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"party": ""}, "federated.secure_sums"),
        ({"rounds": 0}, "federated.secure_sums"),
        ({"train": {"compression": "int8"}}, "train.compression"),
        ({"train": {"compression": "bf16"}}, "train.compression"),
        ({"secure_range": 0.0}, "federated.secure_range"),
        ({"secure_range": math.inf}, "federated.secure_range"),
    ],
)
def test_settings_that_do_not_fit_secure_sums_are_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        federated_training(**{"rounds": 2, "party": "north", "secure_sums": True, **settings})


@pytest.mark.parametrize("task", ["evaluate", "predict"])
def test_secure_sums_are_for_federated_trainings(task):
    needed = {"task": task, "data": "data", "trained_model": "model", "output": "output"}
    with pytest.raises(ConfigError, match="secure_sums"):
        JobConfig(**needed, federated=FederatedConfig(secure_sums=True))


@pytest.mark.parametrize("settings", [{"min_parties": 2}, {"min_parties": 1, "quorum": 0.4}])
def test_a_coordinator_of_secure_sums_waits_for_three_parties(settings):
    parties = ["a", "b", "c", "d", "e"]
    common = {"task": "federate", "job_dir": "job"}
    federated = FederatedConfig(parties=parties, secure_sums=True, **settings)
    with pytest.raises(ConfigError, match="min_parties"):
        JobConfig(**common, federated=federated)
    JobConfig(**common, federated=FederatedConfig(parties=parties, secure_sums=True, quorum=0.6))
