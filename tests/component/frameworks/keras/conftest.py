"""Batches through the `create_dataset` that a test writes for a small model."""

import sys
import textwrap
from contextlib import ExitStack

import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.models.zoo import Overrides, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.source import JobFolders
from edl_horovod.spec import Mode

SPEC = """
import edl_horovod, keras, tensorflow as tf
from edl_horovod import ElasticDLSpec

class Mine(ElasticDLSpec):
    parses_batches = {at_once}
    def create_model(self): return keras.Sequential([keras.layers.Dense(1)])
    def create_loss(self, outputs, labels): return tf.reduce_mean(outputs - labels)
    def create_optimizer(self, lr=0.1): return keras.optimizers.SGD(lr)
"""
METHOD = "    def create_dataset(self, dataset, mode):\n"
BATCH = 4
IN_ORDER = DataConfig(shuffle=False)


@pytest.fixture
def batches_of(tmp_path):
    """Batches of some data through a `create_dataset` of some lines, or without one."""
    with ExitStack() as sources:

        def make(data, lines, *, functions="", at_once=False, mode=Mode.PREDICTION, **batch):
            from edl_horovod.frameworks.keras.batches import KerasBatches

            method = METHOD + textwrap.indent(lines, " " * 8) + "\n" if lines else ""
            text = SPEC.format(at_once=at_once) + method + functions
            (tmp_path / "mine.py").write_text(text)
            overrides = Overrides(has_own_dataset=data.startswith("dataset:"))
            loaded = load_spec(str(tmp_path), "mine.Mine", params={}, overrides=overrides)
            folders = JobFolders(*(tmp_path / "job" / name for name in ("index", "rows", "part")))
            source = sources.enter_context(open_source(data, IN_ORDER, folders=folders))
            batch = batch or {"global_batch": BATCH}
            plan = plan_of(source, IN_ORDER, num_lanes=2, is_training=True, **batch)
            return KerasBatches(source, plan, loaded, mode, prefetch=1)

        yield make
    sys.modules.pop("mine", None)


@pytest.fixture
def next_batches():
    """The next batches of the first steps, in a list."""

    def read(batches, num_steps):
        batches.restart(range(2), 0, num_steps)
        return [batches.next_batch() for _ in range(num_steps)]

    return read
