"""How long a step of PyTorch takes as it is and compiled: one process, in turn, the CIFAR-10 model.

python -m benchmarks.ours.compiled_step --threads 2
"""

import argparse
import itertools
import statistics
import sys
import time
from functools import partial

import torch

from benchmarks.run import ROOT, interleave
from edl_horovod.config.schema import JobConfig, TrainConfig
from edl_horovod.frameworks.base import Step
from edl_horovod.frameworks.torch.ring import FRAMEWORK
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec

BATCH_SIZE, ODD_SIZE = 64, 37
ROUNDS, STEPS = 5, 10


def main() -> int:
    """Print the medians. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="that PyTorch computes with")
    torch.set_num_threads(parser.parse_args().threads)
    FRAMEWORK.begin(slot=0, seed=1)
    batch, odd = _batch(BATCH_SIZE), _batch(ODD_SIZE)
    steps: dict[str, Step] = {}
    for name, compiles in (("as it is", False), ("compiled", True)):
        loaded = load_spec(str(ROOT / "model_zoo"), "cifar10_torch", params={})
        train = TrainConfig(batch_size=BATCH_SIZE, compile=compiles)
        config = JobConfig(
            task="train", data="none", output="none", model_def="cifar10_torch", train=train
        )
        steps[name] = FRAMEWORK.step(loaded, batch, config)
        began = time.perf_counter()
        steps[name].rehearse(batch)
        print(f"{name}: rehearsed in {time.perf_counter() - began:.2f} s", flush=True)
        print(f"{name}: first odd step {1000 * _seconds(steps[name], odd):.0f} ms", flush=True)
    sides = {name: partial(_steps, step, batch) for name, step in steps.items()}
    for name, rounds in interleave(sides, ROUNDS).items():
        seconds = statistics.median(itertools.chain(*rounds))
        print(f"{name}: {1000 * seconds:.1f} ms a step of {BATCH_SIZE}")
    return 0


def _batch(size: int) -> Batch:
    pictures = torch.rand(size, 32, 32, 3)
    return Batch({"image": pictures}, torch.randint(10, (size,)), size)


def _steps(step: Step, batch: Batch) -> list[float]:
    return [_seconds(step, batch) for _ in range(STEPS)]


def _seconds(step: Step, batch: Batch) -> float:
    began = time.perf_counter()
    step.step(batch, wants_change=False, is_alone=True, salt=0)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
