"""A model whose weights count how often each record was applied: the proof of exactly once.

The loss of an example is minus the weight of its id, so a step of plain SGD with a rate of the
global batch adds exactly 1 to the weight of each record of a full step. With `num_clocks` there are
weights, too, that grow alike in every step with an example: they show that a step is applied whole.
"""

import keras
import tensorflow as tf
from pauses import PausingSpec
from slow import delayed

from edl_horovod import Mode


@keras.saving.register_keras_serializable("tests")
class Counter(keras.Model):
    def __init__(self, num_records, num_clocks=0, **kwargs):
        super().__init__(**kwargs)
        self.num_records, self.num_clocks = num_records, num_clocks
        self.between = tf.identity
        self.counts = self.add_weight(shape=(num_records,), initializer="zeros", name="counts")
        self.clocks = [
            self.add_weight(shape=(), initializer="zeros", name=f"clock_{number}")
            for number in range(num_clocks)
        ]

    def call(self, inputs):
        counts = self.between(tf.gather(self.counts, tf.reshape(inputs["id"], [-1])))
        return tf.add_n(
            [counts, *(tf.broadcast_to(clock, tf.shape(counts)) for clock in self.clocks)]
        )

    def get_config(self):
        sizes = {"num_records": self.num_records, "num_clocks": self.num_clocks}
        return {**super().get_config(), **sizes}


class CountingSpec(PausingSpec):
    def create_model(self):
        return Counter(self._num_records, self._num_clocks)

    def create_dataset(self, dataset, mode):
        def parse(record):
            example = tf.io.parse_single_example(
                record, {"id": tf.io.FixedLenFeature([1], tf.int64)}
            )
            features = {"id": tf.cast(example["id"], tf.int32)}
            return features if mode == Mode.PREDICTION else (features, example["id"])

        dataset = dataset.map(parse)
        if self._keep_every > 1:
            dataset = dataset.filter(lambda features, label: label[0] % self._keep_every == 0)
        if self._pauses.until:
            dataset = delayed(dataset, self._pauses.wait)
        return dataset if mode == Mode.PREDICTION else dataset.shuffle(64)

    def create_loss(self, outputs, labels):
        return -tf.reduce_mean(outputs)

    def create_optimizer(self):
        return keras.optimizers.SGD(self._rate)

    def create_metrics(self, mode, outputs, labels):
        return {"mean_id": tf.cast(tf.reshape(labels, [-1]), tf.float32)}
