"""The run loop through rings that break anywhere, with stand-ins for ring and work."""

import contextlib

import pytest

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import GenerationEvent, WorkerEvent
from edl_horovod.job.outcome import Success
from edl_horovod.ring.loop import run


class Job:
    """State, work, membership and event log in one; `breaks` says in which call of what."""

    def __init__(self, **breaks):
        self.breaks, self.calls, self.step, self.state = breaks, [], -1, self
        self.generation = 0

    def _call(self, name):
        self.calls.append(name)
        if self.calls.count(name) == self.breaks.get(name):
            raise CollectiveFailed(f"in {name}")

    def expect(self, world, step):
        pass

    def check(self, world):
        pass

    def writes_files(self, world):
        return world.is_leader

    def join(self, step):
        self._call("join")
        self.generation += 1
        return World(rank=0, size=2, generation=self.generation)

    def agree(self, generation):
        self.generation = generation

    @property
    def own_step(self):
        return self.step

    is_whole = True
    own_name = ""
    """As of a ring whose coordinator knows who is in it."""

    def can_stream_state(self):
        return True

    def sync(self, world, *, may_stream):
        self._call("sync")
        self.step = max(self.step, 0)

    def doing(self, state, phase, cause):
        return contextlib.nullcontext()

    def failed(self, failure):
        self.calls.append("failed")

    def formed(self, world, *, has_state):
        self.calls.append("formed")

    def run(self, world, membership):
        self._call("run")
        self.step += 1
        return True

    def finish(self, world):
        self._call("finish")
        return Success(steps=self.step, metrics={}, output="")

    def records_seen(self):
        return 0

    def write(self, kind, **fields):
        pass


RING = ["join", "sync", "formed", "run", "finish"]
BROKEN = {
    "forming": ("join", ["join"]),
    "sync": ("sync", ["join", "sync"]),
    "a step": ("run", ["join", "sync", "formed", "run"]),
    "the end": ("finish", RING),
}


def test_an_undisturbed_job_forms_one_ring():
    job = Job()
    assert run(job, job, job) == Success(steps=1, metrics={}, output="")
    assert job.calls == RING


@pytest.mark.parametrize(("call", "until"), BROKEN.values(), ids=BROKEN.keys())
def test_a_member_lost_anywhere_is_followed_by_another_ring(call, until):
    job = Job(**{call: 1})
    run(job, job, job)
    assert job.calls == [*until, "failed", *RING]


def test_the_state_is_synchronised_in_every_ring():
    job = Job(run=1)
    run(job, job, job)
    assert job.calls.count("sync") == job.calls.count("join") == 2


class Named(Job):
    """One whose ranks tell each other who they are; one goes with each ring."""

    own_name = "a:0"
    names = ("a:0", "b:0", "c:0")

    def __init__(self, **breaks):
        super().__init__(**breaks)
        self.written = []

    def texts_of_all(self, text, name):
        others = [f"7 {other}" for other in self.names[1:]]
        return [text, *others][: 4 - self.calls.count("join")]

    def run(self, world, membership):
        # The second ring ends in good order.
        return super().run(world, membership) and self.calls.count("run") != 2

    def write(self, event):
        self.written.append(event)


def test_a_ring_without_a_coordinator_says_who_was_lost_with_one_that_broke():
    job = Named(run=1)
    run(job, job, job)
    written = [e for e in job.written if isinstance(e, GenerationEvent | WorkerEvent)]
    rings = [e.members for e in written if isinstance(e, GenerationEvent)]
    assert rings == [Named.names, Named.names[:2], Named.names[:1]]
    # The others have counted more rings, as a rank that came later has not seen them all.
    assert [e.generation for e in written if isinstance(e, GenerationEvent)] == [7, 8, 9]
    # The one that is not in the third ring was let go.
    assert [(e.worker, e.state) for e in written if isinstance(e, WorkerEvent)] == [("c:0", "lost")]
