"""A model whose first layers are frozen when the training begins, as for fine-tuning."""

import keras

from edl_horovod import ElasticDLSpec

NUM_FEATURES = 6


class FrozenSpec(ElasticDLSpec):
    """A backbone with BatchNorm and dropout's seed, and a head."""

    def __init__(self, optimizer="adam", rate=0.02, frees_at=None, use_ema=False):
        self.optimizer, self.rate, self.frees_at = optimizer, rate, frees_at
        self.use_ema = use_ema

    def create_model(self):
        inner = keras.Input((NUM_FEATURES,))
        hidden = keras.layers.Dense(8, activation="tanh")(inner)
        hidden = keras.layers.BatchNormalization(name="norm")(hidden)
        backbone = keras.Model(inner, hidden, name="backbone")
        backbone.trainable = False
        features = keras.Input((NUM_FEATURES,), name="features")
        return keras.Model(features, keras.layers.Dense(1, name="head")(backbone(features)))

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs, labels):
        return keras.ops.mean(keras.ops.square(outputs - labels))

    def create_optimizer(self):
        config = {"learning_rate": self.rate, "use_ema": self.use_ema}
        return keras.optimizers.get({"class_name": self.optimizer, "config": config})

    def create_callbacks(self):
        return [] if self.frees_at is None else [Frees(self.frees_at)]


class Frees(keras.callbacks.Callback):
    """Fine-tuning in two phases: the dense layer of the backbone is trained from an epoch on."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            free(self.model)
            self.model.optimizer.learning_rate = 0.005


def free(model):
    backbone = model.get_layer("backbone")
    backbone.trainable = True
    backbone.get_layer("norm").trainable = False
