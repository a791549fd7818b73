"""The small dense model, slow when it is served, with a processor that notes what it is given."""

import os
from pathlib import Path

from pauses import Pauses
from slow import delayed
from tiny import TinySpec

from edl_horovod import Mode


class ProcessedSpec(TinySpec):
    def __init__(self, context=None, slow_until=""):
        super().__init__(context)
        self._pauses = Pauses(slow_until)

    def create_dataset(self, dataset, mode):
        dataset = super().create_dataset(dataset, mode)
        return dataset if mode == Mode.TRAINING else delayed(dataset, self._pauses.wait)


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id, record_ids):
        outputs = predictions.numpy()[:, 0].tolist()
        lines = [f"{n},{output}\n" for n, output in zip(record_ids.tolist(), outputs, strict=True)]
        with Path(os.environ["PROCESSED"], f"{os.getpid()}.csv").open("a") as stream:
            stream.writelines(lines)
