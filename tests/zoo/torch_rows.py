"""`rows` in PyTorch: columns id, x of 4 numbers, and y; and `feed`, slow until a file is there."""

from pauses import sleep_unless_there
from torch_tiny import TorchTinySpec

from edl_horovod import Mode


def feed(records, mode, slow_until=""):
    sleep_unless_there(slow_until, 0.2)
    return records["x"], records["y"]


class RowsSpec(TorchTinySpec):
    def create_dataset(self, columns, mode):
        features = {"x": columns["x"]}
        return features if mode is Mode.PREDICTION else (features, columns["y"].reshape(-1, 1))
