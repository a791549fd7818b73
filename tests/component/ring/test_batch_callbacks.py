"""Hooks of callbacks that Keras calls for each batch: they look, on the leader, or are refused."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.arrays import assert_close
from tests.later import LATER

if LATER:
    import keras

PER_STEP = "callbacks.per_step=true"
STEPS_PER_EPOCH = 5


if LATER:

    class Looks(keras.callbacks.Callback):
        """Looks at everything that a hook may look at, and counts."""

        def __init__(self):
            super().__init__()
            self.told, self.losses, self.rates, self.num_batches = [], [], [], 0
            self.norms = []

        def on_train_batch_begin(self, batch, logs=None):
            self.told.append(f"> {batch}")

        def on_train_batch_end(self, batch, logs=None):
            self.told.append(f"< {batch}")
            self.losses.append(logs["loss"])
            self.rates.append(float(self.model.optimizer.learning_rate.numpy()))
            self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
            self.num_batches += 1

        def on_epoch_end(self, epoch, logs=None):
            self.told.append(f"epoch {epoch}")


@pytest.mark.long
def test_they_are_called_around_each_step_with_the_means_of_the_epoch_so_far(train, use):
    looks = Looks()
    use(lambda: [looks])
    training = train("train.epochs=2", PER_STEP)
    epoch = [f"{sign} {batch}" for batch in range(STEPS_PER_EPOCH) for sign in "><"]
    assert looks.told == [*epoch, "epoch 0", *epoch, "epoch 1"]
    counts = [24, 24, 24, 24, 4]
    means = [
        np.average([training.losses[6 + at] for at in range(last + 1)], weights=counts[: last + 1])
        for last in range(STEPS_PER_EPOCH)
    ]
    np.testing.assert_allclose(looks.losses[STEPS_PER_EPOCH:], means, rtol=1e-6)
    assert len(set(looks.norms)) == 2 * STEPS_PER_EPOCH  # The present weights, each time.
    assert looks.rates[0] == pytest.approx(0.05)


@pytest.mark.long
def test_a_training_that_is_looked_at_is_the_same_training(train, use):
    use(lambda: [Looks()])
    seen = train("train.epochs=2", PER_STEP, job="seen")
    use(lambda: [])
    assert seen.losses == train("train.epochs=2", job="alone").losses


@pytest.mark.long
def test_what_they_counted_is_there_at_the_end_of_the_epoch_and_after_a_restart(train, use):
    callbacks = []

    def make():
        callbacks.append(Looks())
        return [callbacks[-1]]

    use(make)
    train("train.epochs=3", PER_STEP, until=2 * STEPS_PER_EPOCH + 1)
    assert callbacks[0].num_batches == 2 * STEPS_PER_EPOCH + 1
    train("train.epochs=3", PER_STEP, "resume=must")
    # What they count in an epoch stays with the leader until it ends: one step is not counted.
    assert callbacks[1].num_batches == 3 * STEPS_PER_EPOCH - 1


def _set_rate(callback):
    callback.model.optimizer.learning_rate = 0.5


def _set_weights(callback):
    callback.model.layers[1].set_weights([0 * w for w in callback.model.layers[1].get_weights()])


def _assign_raw(callback):
    callback.model.trainable_variables[0].value.assign_add(1.0)


def _freeze(callback):
    callback.model.layers[1].trainable = False


def _stop(callback):
    callback.model.stop_training = True


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set_rate, "changes .*learning_rate"),
        (_set_weights, "changes .*kernel"),
        (_assign_raw, "{hook} of Changes"),
        (_freeze, "changes .*kernel"),
        (_stop, "changes stop_training"),
    ],
)
@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end"])
def test_one_that_changes_something_is_refused_and_has_changed_nothing(
    train, use, change, said, hook
):
    class Changes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.before = self.model.get_weights()

    def at_batch(self, batch, logs=None):
        if batch == 1:
            change(self)

    setattr(Changes, hook, at_batch)
    changes = Changes()
    use(lambda: [changes])
    with pytest.raises(UserCodeError, match=said.format(hook=hook)):
        train("train.epochs=1", PER_STEP, "train.learning_rate=0.0")
    assert_close(changes.model.get_weights(), changes.before, rtol=0)
