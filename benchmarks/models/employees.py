"""A Keras class on rows of CSV: text is looked up, rows are left out and doubled, rates change."""

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import Mode
from edl_horovod.callbacks import LearningRateScheduler

ROLES = ["analyst", "cook", "driver", "teacher"]
RETIREMENT_AGE = 65.0


class Salary(keras.Model):
    """An embedding of the role, the age beside it, and a dense layer."""

    default_loss = "mse"
    default_optimizer = "adam"

    def __init__(self, width: int = 8, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._lookup = layers.StringLookup(vocabulary=ROLES)
        self._embedding = layers.Embedding(len(ROLES) + 1, width)
        self._hidden = layers.Dense(16, activation="tanh")
        self.last = layers.Dense(1)

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """One salary for each row."""
        role = self._embedding(self._lookup(inputs["role"]))
        age = inputs["age"][:, None] / RETIREMENT_AGE
        return self.last(self._hidden(tf.concat([role, age], axis=1)))

    @staticmethod
    def default_input(dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        """Leaves pensioners out, and takes each of the others twice, shuffled within the step."""

        def parse(row: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            age, role, salary = tf.io.decode_csv(row, record_defaults=[0.0, "", 0.0])
            return {"age": age, "role": role}, salary[None]

        dataset = dataset.map(parse)
        if mode is not Mode.TRAINING:
            return dataset
        dataset = dataset.filter(lambda features, _: features["age"] < RETIREMENT_AGE)
        dataset = dataset.flat_map(lambda *e: tf.data.Dataset.from_tensors(e).repeat(2))
        return dataset.shuffle(64)


class Shrink(keras.callbacks.Callback):
    """Changes the model between epochs, on one rank: all others must have it before they go on."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Shorten all weights of the last layer."""
        kernel = self.model.last.kernel
        kernel.assign(0.9 * kernel)


def callbacks() -> list[keras.callbacks.Callback]:
    """One that acts between epochs, and one that acts on every step."""
    return [Shrink(), LearningRateScheduler(lambda step: 0.05 * 0.97**step)]
