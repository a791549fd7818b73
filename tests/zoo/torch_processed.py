"""`processed` in PyTorch: slow when it is served, with a processor that notes what it is given."""

import os
from pathlib import Path

from pauses import Pauses
from torch_tiny import TorchTinySpec

from edl_horovod import Mode


class ProcessedSpec(TorchTinySpec):
    def __init__(self, context=None, slow_until=""):
        super().__init__(context)
        self._pauses = Pauses(slow_until)

    def create_dataset(self, records, mode):
        if mode != Mode.TRAINING:
            self._pauses.wait()
        return super().create_dataset(records, mode)


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id, record_ids):
        outputs = predictions[:, 0].tolist()
        lines = [f"{n},{output}\n" for n, output in zip(record_ids.tolist(), outputs, strict=True)]
        with Path(os.environ["PROCESSED"], f"{os.getpid()}.csv").open("a") as stream:
            stream.writelines(lines)
