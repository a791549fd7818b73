"""The proof from a ledger: good jobs pass whatever happens to them, doctored ledgers do not."""

import dataclasses
import math
import resource
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.ledger import LedgerFile, check, read
from edl_horovod.ledger.files import Begin, Done, Give, Leave, decode, encode
from edl_horovod.records.plan import DataPlan, lanes_of_rank

PLAN = DataPlan(
    block_starts=np.array([0, 30]),
    block_counts=np.array([30, 16]),
    global_batch=12,
    num_lanes=4,
    window=5,
    seed=3,
)
STEPS = 2 * PLAN.steps_per_epoch


class Writer:
    """A job that keeps a ledger, with rings and deaths as a test wants them."""

    def __init__(self, folder, plan=PLAN):
        self.folder, self.plan = folder, plan
        self.files, self.own = {}, {}
        self.num_rings = 0

    def write(self, worker, entry):
        if worker not in self.files:
            self.files[worker] = LedgerFile(self.folder, worker)
        self.files[worker].write(entry)

    def lose(self, *workers):
        for worker in workers:
            self.files.pop(worker).close()
            self.own.pop(worker, None)

    def ids(self, step, rank, size):
        epoch, within = divmod(step, self.plan.steps_per_epoch)
        lanes = lanes_of_rank(rank, size, self.plan.num_lanes)
        return self.plan.order(epoch).records(within, lanes)

    def begin(self, workers, step, **changes):
        self.num_rings += 1
        for rank, worker in enumerate(workers):
            entry = Begin(
                ring=self.num_rings,
                generation=self.num_rings,
                rank=rank,
                size=len(workers),
                step=step,
                own_step=self.own.get(worker, -1),
                digest=f"state {step}",
            )
            self.write(worker, dataclasses.replace(entry, **changes))

    def give(self, workers, step, doctor=lambda rank, ids: ids):
        for rank, worker in enumerate(workers):
            ids = doctor(rank, self.ids(step, rank, len(workers)))
            self.write(worker, Give(ring=self.num_rings, step=step, ids=ids))

    def done(self, workers, step):
        for worker in workers:
            self.write(worker, Done(ring=self.num_rings, step=step, examples=12, loss=0.5))

    def leave(self, workers, step, *, is_over=False, digest=None):
        digest = digest or f"state {step}"
        for worker in workers:
            entry = Leave(ring=self.num_rings, step=step, digest=digest, is_over=is_over)
            self.write(worker, entry)
            self.own[worker] = step

    def steps(self, workers, first, last):
        for step in range(first, last):
            self.give(workers, step)
            self.done(workers, step)

    def train(self, workers, first, last, **changes):
        """A ring from its begin to the end of a step."""
        self.begin(workers, first, **changes)
        self.steps(workers, first, last)

    def ring(self, workers, first, last, *, is_over=False, **changes):
        """A ring from its begin to its good end."""
        self.train(workers, first, last, **changes)
        self.leave(workers, last, is_over=is_over)

    def close(self):
        for file in self.files.values():
            file.close()

    def prove(self):
        return check(read(self.folder), self.plan)


@pytest.fixture
def job(tmp_path):
    writer = Writer(tmp_path / "ledger")
    yield writer
    writer.close()


def good(job):
    """The proof of a job that has no violation."""
    proof = job.prove()
    assert proof.is_good, proof.violations
    return proof


def only(proof):
    """The one violation of a proof."""
    assert proof.num_violations == 1, proof.violations
    return proof.violations[0]


def named(proof):
    """What the violations of a proof name: kind, step and rank, and the records."""
    assert proof.num_violations == len(proof.violations)
    return [(v.kind, v.step, v.rank, v.records) for v in proof.violations]


def test_a_quiet_job_is_proven(job):
    job.ring(["a", "b"], 0, STEPS, is_over=True)
    proof = good(job)
    assert proof.is_finished
    assert (proof.num_steps, proof.num_epochs, proof.num_records) == (STEPS, 2, 2 * 46)
    assert (proof.num_rings, proof.num_redone_steps, proof.restored) == (1, 0, ())
    assert (proof.digest, proof.num_last_ranks) == (f"state {STEPS}", 2)


def test_a_job_without_an_entry_has_done_nothing(job):
    job.folder.mkdir()
    assert (good(job).is_finished, good(job).num_steps) == (False, 0)


def test_a_resize_and_a_sudden_death_are_proven(job):
    job.ring(["a", "b"], 0, 2)
    job.train(["a", "b", "c"], 2, 4)
    job.give(["a", "b", "c"], 4)
    job.lose("b")  # Without a word: the others leave with the last whole step.
    job.leave(["a", "c"], 4)
    job.ring(["a", "c"], 4, STEPS, is_over=True)
    proof = good(job)
    assert (proof.num_rings, proof.num_redone_steps, proof.num_last_ranks) == (3, 0, 2)


def test_a_step_that_only_some_completed_counts_once_where_one_of_them_lives(job):
    job.begin(["a", "b", "c"], 0)
    job.give(["a", "b", "c"], 0)
    job.lose("c")
    job.done(["a"], 0)
    job.leave(["a"], 1)
    job.leave(["b"], 0)
    job.ring(["a", "b"], 1, STEPS, is_over=True)
    assert good(job).num_redone_steps == 0


def test_a_step_whose_only_witness_died_is_done_again_and_counts_once(job):
    job.begin(["a", "b"], 0)
    job.give(["a", "b"], 0)
    job.done(["a"], 0)
    job.lose("a")
    job.leave(["b"], 0)
    job.ring(["b"], 0, STEPS, is_over=True)
    proof = good(job)
    assert (proof.num_redone_steps, proof.num_steps) == (1, STEPS)


def test_a_ring_that_trained_on_unnoticed_does_not_count(job):
    job.ring(["a", "b"], 0, 2)
    job.train(["b"], 2, 3)
    # `b` was cut off alone; the others go on without it, and further.
    job.ring(["a"], 2, 5)
    job.num_rings -= 1
    job.leave(["b"], 3)
    job.num_rings += 1
    job.ring(["a", "b"], 5, STEPS, is_over=True)
    assert good(job).num_redone_steps == 1


def test_a_job_that_all_ranks_were_lost_of_goes_on_from_a_checkpoint(job):
    job.train(["a", "b"], 0, 4)
    job.lose("a", "b")
    job.ring(["c"], 3, STEPS, is_over=True)
    proof = good(job)
    assert (proof.restored, proof.num_redone_steps) == ((3,), 1)


def test_a_torn_last_line_is_no_violation(job):
    job.train(["a", "b"], 0, 2)
    job.give(["a", "b"], 2)
    job.lose("b")
    path = next(job.folder.glob("*.b.*"))
    path.write_bytes(path.read_bytes()[:-20])
    job.leave(["a"], 2)
    job.ring(["a"], 2, STEPS, is_over=True)
    assert good(job).num_damaged == 1


def test_a_running_job_is_proven_so_far(job):
    job.train(["a", "b"], 0, 3)
    job.give(["a"], 3)
    assert (good(job).is_finished, good(job).num_steps) == (False, 3)


def test_a_missing_record_is_named_with_its_step_generation_and_rank(job):
    job.ring(["a", "b"], 0, 1)
    job.begin(["a", "b"], 1)
    job.give(["a", "b"], 1, lambda rank, ids: ids[1:] if rank == 1 else ids)
    job.done(["a", "b"], 1)
    job.steps(["a", "b"], 2, STEPS)
    job.leave(["a", "b"], STEPS, is_over=True)
    proof = job.prove()
    assert named(proof) == [("missing", 1, 1, (job.ids(1, 1, 2)[0],))]
    assert proof.violations[0].generation == 2


def test_a_doubled_record_is_named_on_each_rank_that_gave_it(job):
    stolen = job.ids(1, 0, 2)[0]
    job.train(["a", "b"], 0, 1)
    job.give(["a", "b"], 1, lambda rank, ids: np.append(ids, stolen) if rank == 1 else ids)
    job.done(["a", "b"], 1)
    job.leave(["a", "b"], 2)
    proof = job.prove()
    assert sorted(named(proof)) == [("doubled", 1, rank, (stolen,)) for rank in (0, 1)]
    assert {violation.generation for violation in proof.violations} == {1}


def test_a_foreign_record_is_named(job):
    job.begin(["a"], 0)
    job.give(["a"], 0, lambda _, ids: np.append(ids, 999))
    job.done(["a"], 0)
    assert named(job.prove()) == [("foreign", 0, 0, (999,))]


def test_a_step_that_is_left_out_is_a_gap(job):
    job.train(["a"], 0, 2)
    job.steps(["a"], 3, 5)
    assert only(job.prove()).kind == "gap"


@pytest.mark.parametrize("members", ["a", "ab"])
@pytest.mark.parametrize(
    ("step", "digest", "kind"),
    [(5, "state 3", "gap"), (2, "state 2", "rolled back"), (3, "something else", "differs")],
    ids=["it skips steps", "it goes back although a member knew better", "another state"],
)
def test_a_ring_that_does_not_go_on_where_the_last_one_ended_is_found(
    job, members, step, digest, kind
):
    job.ring(members, 0, 3)
    job.begin(members, step, digest=digest)
    assert only(job.prove()).kind == kind
    job.steps(members, step, STEPS)
    job.leave(members, STEPS, is_over=True)
    assert only(job.prove()).kind == kind


def test_variables_that_differ_between_ranks_are_found_at_both_ends_of_a_ring(job):
    job.train(["a", "b"], 0, 2)
    job.leave(["a"], 2)
    job.leave(["b"], 2, digest="something else")
    assert named(job.prove()) == [("differs", 2, 1, ())]


def test_a_leader_that_took_the_best_weights_at_the_end_is_no_violation(job):
    job.ring(["a", "b"], 0, STEPS, is_over=True)
    job.lose("b")
    job.begin(["a"], STEPS, digest="the best")
    job.leave(["a"], STEPS, is_over=True, digest="the best")
    assert good(job).digest == "the best"


@pytest.fixture
def full_disk():
    """A function that lets no file of this process grow, and one that lets them grow again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield (
        lambda num_bytes=0: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_had_no_room_for_is_written_when_there_is_room_again(job, full_disk):
    fill, make_room = full_disk
    job.train(["a", "b"], 0, 2)
    size = max(path.stat().st_size for path in job.folder.iterdir())
    fill(size + 30)  # In the midst of a line.
    job.steps(["a", "b"], 2, 4)
    job.leave(["a", "b"], 4)
    job.begin(["a", "b"], 4)
    make_room()
    job.steps(["a", "b"], 4, STEPS)
    job.leave(["a", "b"], STEPS, is_over=True)
    proof = good(job)
    assert (proof.is_finished, proof.num_damaged) == (True, 0)


def test_entries_that_a_full_disk_lost_do_not_matter_where_the_steps_were_done_again(
    job, full_disk
):
    fill, make_room = full_disk
    job.train(["a", "b"], 0, 3)
    # The disk has room for the entries of one rank alone, and all ranks end.
    job.write("a", Give(ring=1, step=3, ids=job.ids(3, 0, 2)))
    job.done(["a"], 3)
    fill()
    job.steps(["a", "b"], 4, 6)
    job.lose("a", "b")
    make_room()
    job.ring(["c", "d"], 2, STEPS, is_over=True)
    proof = good(job)
    assert (proof.is_finished, proof.restored) == (True, (2,))


def test_entries_that_are_missing_are_told_from_records_that_are_lost(job, full_disk):
    fill, make_room = full_disk
    job.train(["a", "b"], 0, 3)
    job.write("a", Give(ring=1, step=3, ids=job.ids(3, 0, 2)))
    fill()
    job.write("b", Give(ring=1, step=3, ids=job.ids(3, 1, 2)))
    job.lose("b")
    make_room()
    job.done(["a"], 3)
    job.leave(["a"], 4)
    job.ring(["a"], 4, STEPS, is_over=True)
    proof = job.prove()
    assert not proof.is_good
    assert proof.num_gaps == proof.num_violations
    assert named(proof) == [("gap", 3, 1, ())]


def test_a_lost_entry_in_the_middle_is_found(job):
    job.ring(["a", "b"], 0, STEPS, is_over=True)
    path = next(job.folder.glob("*.b.*"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert isinstance(decode(lines[3]), Give)
    path.write_bytes(b"".join([*lines[:3], lines[3][:9] + b"\n", *lines[4:]]))
    assert named(job.prove()) == [("gap", 1, 1, ())]


@pytest.mark.parametrize("line", [b"", b"{}\n", b"[]\n", b'{"kind":"give","ids":"?"}\n', b"\xff\n"])
def test_what_is_no_entry_is_none(line):
    assert decode(line) is None


def test_entries_survive_their_file_as_json():
    entry = Give(ring=1 << 60, step=7, ids=np.array([5, 1 << 40], np.int64))
    again = decode(encode(entry))
    assert (again.ring, again.step, again.ids.tolist()) == (1 << 60, 7, [5, 1 << 40])
    line = encode(Done(ring=1, step=3, examples=0, loss=math.nan))  # A step without examples.
    assert b"NaN" not in line
    assert math.isnan(decode(line).loss)


GROWING = dataclasses.replace(PLAN, global_batch=0, rank_batch=3)


class GrowingWriter(Writer):
    """A job whose batch grows with the ring."""

    def __init__(self, folder):
        super().__init__(folder, GROWING)
        self.taken = 0

    def ring(self, workers, first, last, *, is_over=False):
        self.spans = GROWING.spans(len(workers), first_step=first, first_record=self.taken)
        super().ring(workers, first, last, is_over=is_over, records=self.taken)
        self.taken = self.spans.records_before(last)

    def ids(self, step, rank, size):
        span = self.spans[step]
        lanes = GROWING.lanes_of(rank, size)
        return GROWING.order(span.epoch).between(span.first, span.last, lanes)


def test_rings_of_any_size_take_each_record_once_where_the_batch_grows(tmp_path):
    job = GrowingWriter(tmp_path)
    job.ring(["a", "b", "c"], 0, 2)
    job.ring(["a"], 2, 4)
    job.ring(["a", "b", "c", "d"], 4, 7, is_over=True)  # 18, 6, and 22 in 2 steps; then 12.
    job.close()
    proof = good(job)
    assert (proof.num_steps, proof.num_epochs, proof.num_records) == (7, 1, 58)


@pytest.mark.parametrize("records", [6, 30])
def test_a_ring_that_begins_with_another_record_than_the_next_is_found(tmp_path, records):
    job = GrowingWriter(tmp_path)
    job.ring(["a", "b"], 0, 2)
    job.taken = records
    job.ring(["a"], 2, 3, is_over=True)
    job.close()
    violation = only(job.prove())
    assert (violation.kind, violation.step) == ("gap", 2)
    assert f" {records} records, and 12 " in violation.message


def run_at_random(job, random):
    """A job to its end, in rings that change at random and lose members in the middle of steps."""
    alive, born, step = ["w0"], 1, 0
    while True:
        newcomers = random.randint(0, PLAN.num_lanes - len(alive))
        alive += [f"w{born + number}" for number in range(newcomers)]
        born += newcomers
        last = random.randint(step, STEPS)
        job.train(alive, step, last)
        step = last
        dead = set(random.sample(alive, random.randint(0, len(alive) - 1)))
        if step == STEPS or not dead:
            job.leave(alive, step, is_over=step == STEPS)
            if step == STEPS:
                return
            continue
        job.give(alive, step)
        done = set(random.sample(alive, random.randint(0, len(alive))))
        job.done(sorted(done), step)
        for worker in set(alive) - dead:
            job.leave([worker], step + (worker in done))
        job.lose(*dead)
        alive = [worker for worker in alive if worker not in dead]
        step += bool(done - dead)


@pytest.mark.long
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_random_jobs_are_proven_and_with_one_record_less_only_where_it_did_not_count(
    tmp_path_factory, seed
):
    random = Random(seed)
    job = Writer(tmp_path_factory.mktemp("job"))
    run_at_random(job, random)
    job.close()
    proof = good(job)
    assert (proof.num_steps, proof.is_finished) == (STEPS, True)

    lines = {path: path.read_bytes().splitlines(keepends=True) for path in job.folder.iterdir()}
    entries = [(path, at, decode(line)) for path in lines for at, line in enumerate(lines[path])]
    done = {(entry.ring, entry.step) for _, _, entry in entries if isinstance(entry, Done)}
    gives = [give for give in entries if isinstance(give[2], Give) and len(give[2].ids)]
    path, at, entry = random.choice(sorted(gives, key=lambda give: give[:2]))
    lines[path][at] = encode(dataclasses.replace(entry, ids=entry.ids[1:]))
    path.write_bytes(b"".join(lines[path]))
    assert job.prove().is_good is ((entry.ring, entry.step) not in done)
