"""A newcomer is given a large state while the ring goes on, and nothing that happens loses any."""

import signal

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from edl_horovod.ledger.files import read_losses
from tests import counting_job

NUM_WEIGHTS = 4_300_000
"""17.2 MB: from 16 MiB on a state is streamed."""
SLOW_SHARE = 1e-4
"""So many slices that all can be done to the ring between the first and the last."""

STEPS_OF_EPOCH = counting_job.NUM_RECORDS // counting_job.BATCH


class Streamed:
    """A job of the model that counts its records, with a large state."""

    def __init__(self, start, folder, **settings):
        self._folder = folder
        settings = {"elastic.join_share": SLOW_SHARE, "debug.ledger": "true", **settings}
        settings |= {"params.num_records": NUM_WEIGHTS, "launch.np": settings.get("launch.np", 1)}
        self.job = start("train", *counting_job.overrides(folder, **settings))
        self.job.wait_for_step(3)

    def grow(self, size):
        """Let one more worker join; returns when it is being given the state."""
        after = self.job.generation()
        self.job.want(size)
        generation = self.job.wait_for_ring(size, after=after)
        self.job.wait_for_step(self.reset(generation).event.step + 3)
        assert self.is_streaming(size)
        return generation

    def is_streaming(self, size):
        """Whether fewer than all of the ring had lanes in the last step."""
        return self.job.events("step")[-1].event.size < size

    def reset(self, generation):
        return self.job.wait_for(
            lambda events: next(
                (e for e in events if e.event.kind == "reset" and e.event.generation == generation),
                None,
            ),
            f"generation {generation}",
        )

    def wait_until_all_work(self, size):
        self.hurry()
        self.job.wait_for(
            lambda _: self.job.events("step")[-1].event.size == size, f"{size} ranks with lanes"
        )

    def hurry(self):
        (self._folder / "hurry").touch()

    def steps(self):
        """Each step with its number of ranks that have the state, of a job that is done."""
        return read_losses(JobDir(self.job.job_dir).ledger)

    def finish(self):
        self.hurry()
        self.job.succeed()
        proof = prove(JobDir(self.job.job_dir))
        assert proof.is_good, proof.violations
        assert proof.is_finished
        counts, _ = counting_job.counts_and_clocks(trained_model.read(self._folder / "out"))
        expected = np.zeros(NUM_WEIGHTS)
        expected[: counting_job.NUM_RECORDS] = counting_job.EPOCHS
        np.testing.assert_allclose(counts, expected, rtol=1e-5)
        return proof


@pytest.fixture
def streamed(start, tmp_path):
    return lambda **settings: Streamed(start, tmp_path, **settings)


@pytest.mark.long
def test_a_newcomer_works_when_it_has_all(streamed):
    job = streamed()
    generation = job.grow(2)
    job.wait_until_all_work(2)
    since = job.reset(generation).event.step
    assert not job.finish().num_redone_steps
    # The end of an epoch, with nothing to be done there, sends nothing at once. Events tell of a
    # few steps a second, during which several epochs pass; the ledger has every step.
    alone = [step.step for step in job.steps() if step.step >= since and step.size == 1]
    assert len({step // STEPS_OF_EPOCH for step in alone}) > 2


@pytest.mark.long
def test_a_state_that_has_not_come_by_the_end_is_sent_at_once(streamed):
    job = streamed()
    job.grow(2)
    assert job.finish().num_last_ranks == 2


@pytest.mark.long
def test_a_newcomer_that_is_lost_while_it_gets_the_state_costs_no_step(streamed):
    job = streamed()
    generation = job.grow(2)
    job.job.signal_worker(1, signal.SIGKILL)
    job.job.wait_for_ring(2, after=job.job.wait_for_ring(1, after=generation))
    job.wait_until_all_work(2)
    assert not job.finish().num_redone_steps


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_where_the_source_goes_another_rank_goes_on(streamed, number):
    job = streamed(**{"launch.np": 2})
    generation = job.grow(3)
    leader = job.job.events("generation")[-1].event.members[0]
    job.job.signal_worker(int(leader.rpartition(":")[2]), number)
    job.job.wait_for_ring(2, after=generation)
    job.hurry()
    assert not job.finish().num_redone_steps


@pytest.mark.long
def test_the_only_source_stays_until_the_newcomer_has_all(streamed):
    job = streamed()
    generation = job.grow(2)
    job.job.signal_worker(0, signal.SIGTERM)
    job.job.wait_for_ring(1, after=generation)
    proof = job.finish()
    assert not proof.num_redone_steps
    assert not proof.restored


@pytest.mark.long
def test_where_the_only_source_is_killed_the_training_begins_again(streamed):
    """As with any state that nobody has any more; what the newcomer has of it is not used."""
    job = streamed(**{"checkpoint.every_steps": 0, "checkpoint.every_seconds": 0})
    job.grow(2)
    job.job.signal_worker(0, signal.SIGKILL)
    assert job.finish().num_redone_steps > 0


@pytest.mark.long
def test_a_second_newcomer_and_a_leave_in_between(streamed):
    job = streamed(**{"elastic.max_np": 3})
    job.grow(2)
    generation = job.grow(3)
    job.job.want(2)
    job.job.wait_for_ring(2, after=generation)
    job.wait_until_all_work(2)
    assert not job.finish().num_redone_steps
