"""A model of Keras 3 on PyTorch (`KERAS_BACKEND=torch`), inside a module of PyTorch."""

import keras
import torch
from torch import nn
from torch_tiny import TorchTinySpec


class OnKeras(nn.Module):
    """Keras is told whether it trains: it does not look at the module's mode."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features):
        return self.model(features["x"], training=self.training)


class TorchKerasSpec(TorchTinySpec):
    def create_model(self, dropout=0.0):
        layers = keras.layers
        return OnKeras(
            keras.Sequential(
                [
                    keras.Input((4,)),
                    layers.Dense(8, use_bias=False),
                    layers.BatchNormalization(),
                    layers.Activation("tanh"),
                    layers.Dropout(dropout),
                    layers.Dense(1),
                ]
            )
        )

    def create_loss(self, outputs, labels):
        return keras.losses.mean_squared_error(labels, outputs)

    def create_optimizer(self, model, lr=0.05):
        return torch.optim.SGD(
            [parameter for parameter in model.parameters() if parameter.requires_grad], lr
        )

    def create_metrics(self, outputs, labels):
        return {"absolute_error": keras.losses.mean_absolute_error(labels, outputs)}
