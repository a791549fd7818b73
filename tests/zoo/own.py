"""Models that bring their loss, their metrics and their optimizer, as Keras users write them."""

import keras
import tensorflow as tf
from keras import ops

from edl_horovod import ElasticDLSpec

NUM_FEATURES = 6


def layers(num_outputs=1):
    features = keras.Input((NUM_FEATURES,), name="features")
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(features)
    named = [keras.layers.Dense(1, name=f"out{i}")(hidden) for i in range(num_outputs)]
    return features, named


def one_output(*settings, kind=keras.Model, **options):
    """A model of one output, compiled."""
    features, (output,) = layers()
    model = kind(features, output)
    model.compile(*settings, **options)
    return model


def compiled():
    features, (output,) = layers()
    model = keras.Model(features, output)
    metrics = ["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()]
    optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_list=model.layers[-1].weights)
    model.compile(optimizer=optimizer, loss="mse", metrics=metrics)
    return model


class OwnLoss(keras.Model):
    """Counts its loss once a batch, as Keras' guides do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="tracked")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean(ops.abs(y - y_pred)) + 0.1 * ops.mean(ops.square(x)) + sum(self.losses)
        self.tracker.update_state(loss)
        return loss


def own_loss():
    return one_output(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), kind=OwnLoss)


class Contrasting(keras.Model):
    """Has a loss that compares the examples of a batch with each other."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) - 0.01 * ops.var(y_pred)


def contrasting():
    return one_output(optimizer="sgd", kind=Contrasting)


def embedding():
    ids = keras.Input((3,), dtype="int32", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def executed_otherwise():
    return one_output(optimizer="sgd", loss="mse", run_eagerly=True, steps_per_execution=1)


class OwnMetrics(keras.Model):
    """Has a metric that needs the features."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spread = keras.metrics.MeanMetricWrapper(
            lambda x, y_pred: ops.max(x, -1) - y_pred[:, 0], name="spread"
        )

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        metrics = super().compute_metrics(x, y, y_pred, sample_weight)
        self.spread.update_state(x, y_pred)
        return {**metrics, "spread": self.spread.result()}


def own_metrics():
    return one_output(optimizer="adam", loss=keras.losses.Huber(), metrics=["mae"], kind=OwnMetrics)


def listed():
    features, outputs = layers(2)
    model = keras.Model(features, outputs)
    losses, metrics = ["mse", keras.losses.Huber()], [["mae"], ["mse"]]
    model.compile("adam", losses, loss_weights=[0.3, 2.0], metrics=metrics)
    return model


def named():
    features, outputs = layers(2)
    model = keras.Model(features, {"a": outputs[0], "b": outputs[1]})
    losses, metrics = {"a": "mse", "b": "mae"}, {"b": ["mse", "mae"]}
    model.compile("adam", losses, loss_weights={"a": 0.3, "b": 2.0}, metrics=metrics)
    return model


def weighted_pair():
    return weighted(2)


def weighted(width=1):
    features, (output,) = layers()
    model = keras.Model(features, keras.layers.Dense(width)(output))
    model.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mae", "mse"])
    return model


class Varying(keras.Model):
    """Features of different lengths, or few that are not zero."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        if isinstance(x, tf.RaggedTensor):
            x = tf.stack([tf.reduce_sum(x, 1), tf.reduce_max(x, 1)], 1)
        else:
            x = tf.sparse.to_dense(x)
        return self.dense(x)


def varying():
    model = Varying()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


MODELS = {
    "weighted": None,
    "adding_a_mean": None,
    "compiled": None,
    "own_loss": None,
    "own_metrics": None,
    "listed": lambda a, b: (a, b),
    "named": lambda a, b: {"a": a, "b": b},
}
"""Those that train; each with what makes its labels of two, None where it wants one."""


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}

    def test_step(self, data):
        return {}


def own_step():
    return one_output("sgd", "mse", kind=OwnStep)


def summed():
    return one_output("sgd", keras.losses.MeanSquaredError(reduction="sum"))


def partly_summed():
    features, outputs = layers(2)
    model = keras.Model(features, outputs)
    model.compile("adam", ["mse", keras.losses.MeanAbsoluteError(reduction="sum")])
    return model


class Adding(keras.layers.Layer):
    """Adds to the loss what `add` makes of its inputs."""

    def __init__(self, add):
        super().__init__()
        self._add = add

    def call(self, x):
        self.add_loss(self._add(x**2))
        return x


def adding(add):
    features, (output,) = layers()
    model = keras.Model(features, Adding(add)(output))
    model.compile("adam", "mse")
    return model


def adding_a_sum():
    return adding(ops.sum)


def adding_a_mean():
    return adding(ops.mean)


class Largest(keras.metrics.Metric):
    """What no ring can add up."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(y_pred)))

    def result(self):
        return self.value


def largest():
    return one_output("sgd", "mse", metrics=[Largest()])


class Loose(OwnMetrics):
    """Returns a number that no metric has."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"loose": ops.max(y_pred)}


def loose():
    return one_output("sgd", "mse", kind=Loose)


class Doubling(keras.Model):
    def predict_step(self, data):
        return 2.0 * self(data, training=False)


def doubling():
    features, (output,) = layers()
    return Doubling(features, output)


def measured():
    features = keras.Input((NUM_FEATURES,), name="features")
    model = keras.Model(features, keras.layers.Dense(1)(features))
    model.compile(metrics=["mae"])
    return model


def bare():
    features, (output,) = layers()
    return keras.Model(features, output)


class OwnSpec(ElasticDLSpec):
    """Has no loss and no optimizer: the model of this name brings them."""

    def __init__(self, kind="compiled"):
        self.kind = kind

    def create_model(self):
        return globals()[self.kind]()

    def create_dataset(self, dataset, mode):
        return dataset


class SpokenFor(OwnSpec):
    """Has what the model has, too."""

    def create_loss(self, outputs, labels):
        return ops.mean(ops.abs(outputs - labels))

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.SGD(lr)
