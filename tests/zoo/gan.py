"""A small GAN with BatchNorm in both nets, at the pace of `curve`."""

from math import inf

import keras
from curve import CurveSpec
from keras import layers, ops

from edl_horovod import Phase


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = (
            keras.Sequential(
                [
                    keras.Input((inputs,)),
                    layers.Dense(8, use_bias=False),
                    layers.BatchNormalization(),
                    layers.Activation("tanh"),
                    layers.Dense(outputs),
                ]
            )
            for inputs, outputs in ((3, 4), (4, 1))
        )

    def call(self, features):
        return self.critic(features["x"])


class GanSpec(CurveSpec):
    def __init__(self, context=None, slow_until="", slower_after=inf, critic_records="same"):
        # Which example has which place counts where the records are divided: no shuffling.
        super().__init__(
            context, slow_until, slower_after, window=64 if critic_records == "same" else 1
        )
        self._critic_records = critic_records

    def create_model(self):
        return Gan()

    def create_phases(self, model):
        return [
            Phase(
                "critic", model.critic.trainable_variables, repeats=2, records=self._critic_records
            ),
            Phase("generator", model.generator.trainable_variables, every=2),
        ]

    def create_optimizer(self, lr=0.05):
        return {name: keras.optimizers.SGD(lr, 0.5) for name in ("critic", "generator")}

    def create_phase_loss(self, phase, model, features, noise):
        score = model.critic(model.generator(noise(3), training=True), training=True)
        if phase == "generator":
            return ops.mean(ops.softplus(-score))
        real = model.critic(features["x"], training=True)
        return ops.mean(ops.softplus(score)) + ops.mean(ops.softplus(-real))
