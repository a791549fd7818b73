"""A worker runs its steps once while it gets warm, and nothing comes of it."""

import pytest

from edl_horovod.frameworks.base import CollectiveFailed
from tests.arrays import assert_close
from tests.later import LATER

if LATER:
    import tensorflow as tf


@pytest.mark.long
def test_nothing_has_changed_when_a_worker_is_warm(train, watched):
    steps = []

    def rehearse(step, batch):
        before = [variable.numpy() for variable in step.variables.values()]
        assert batch.num_examples > 0
        step.rehearse(batch)
        after = [variable.numpy() for variable in step.variables.values()]
        assert_close(after, before, rtol=0)
        steps.append(step)

    watched.rehearse = rehearse
    rehearsed = train("train.epochs=1", job="rehearsed")
    assert len(steps) == 1
    watched.rehearse = lambda *_: None
    plain = train("train.epochs=1", job="plain")
    assert rehearsed.losses == plain.losses
    assert_close(rehearsed.weights(), plain.weights(), rtol=0)


@pytest.mark.long
def test_the_collective_of_a_rehearsal_fails_and_no_earlier_op(train, monkeypatch):
    from edl_horovod.frameworks.keras import step as keras_step

    failures = []

    class Suppressed:
        def __init__(self, *errors):
            self.errors = errors

        def __enter__(self):
            return self

        def __exit__(self, kind, error, _):
            # Not those of other code.
            if tf.errors.OpError in self.errors:
                failures.append(kind)
            return kind is None or issubclass(kind, self.errors)

    monkeypatch.setattr(keras_step.contextlib, "suppress", Suppressed)
    train("train.epochs=1", until=2)
    assert failures[:2] == [None, CollectiveFailed]
