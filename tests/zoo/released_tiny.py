"""A model file in the style that ElasticDL released: nothing in it is ours."""

import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler, MaxStepsStopping
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor


def custom_model(units=8):
    inputs = tf.keras.Input(shape=(4,), name="x")
    hidden = tf.keras.layers.Dense(units, activation="tanh")(inputs)
    return tf.keras.Model(inputs={"x": inputs}, outputs=tf.keras.layers.Dense(1)(hidden))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1])))


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def feed(dataset, mode, _):
    def _parse_data(record):
        feature_description = {"x": tf.io.FixedLenFeature([4], tf.float32)}
        if mode != Mode.PREDICTION:
            feature_description["y"] = tf.io.FixedLenFeature([1], tf.float32)
        r = tf.io.parse_single_example(record, feature_description)
        features = {"x": r["x"]}
        return features if mode == Mode.PREDICTION else (features, r["y"])

    dataset = dataset.map(_parse_data)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(buffer_size=1024)
    return dataset


def eval_metrics_fn():
    return {
        "is_close": lambda labels, predictions: tf.abs(labels - predictions) < 0.5,
        "mse": tf.keras.metrics.MeanSquaredError(),
        "r2": tf.keras.metrics.R2Score,
        "rmse": tf.keras.metrics.RootMeanSquaredError(),
    }


def callbacks():
    return [LearningRateScheduler(lambda batch: 0.1), MaxStepsStopping(10_000)]


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        pass
