"""The small dense model, slow when it is served, with a processor that notes what it is given."""

import os
from pathlib import Path

from slow import pause_each_step
from tiny import TinySpec

from edl_horovod import Mode


class ProcessedSpec(TinySpec):
    def __init__(self, context=None, slow_until=""):
        super().__init__(context)
        self._slow_until = slow_until

    def create_dataset(self, dataset, mode):
        dataset = super().create_dataset(dataset, mode)
        return dataset if mode == Mode.TRAINING else pause_each_step(dataset, self._slow_until)


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id, record_ids):
        values = predictions.numpy()[:, 0].tolist()
        lines = [f"{n},{value}\n" for n, value in zip(record_ids.tolist(), values, strict=True)]
        with Path(os.environ["PROCESSED"], f"{os.getpid()}.csv").open("a") as stream:
            stream.writelines(lines)
