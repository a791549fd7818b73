"""The settings of a training, for tests of what is made from them."""

from edl_horovod.config.schema import JobConfig, TrainConfig


def training(batch_size, train=None, **settings):
    """A job of this batch size; `train` are more of its settings `train.*`."""
    needed = {"task": "train", "data": "data", "output": "output", "model_def": "model"}
    train_config = TrainConfig(batch_size=batch_size, **(train or {}))
    return JobConfig(**needed, train=train_config, **settings)
