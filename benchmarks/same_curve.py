"""Draw the loss of the same training on 1 to 4 ranks, and on a ring that changes: `make curve`.

Each run keeps a ledger, so the loss of every single step is known, and that no record is missing.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.ours.job import job_config
from benchmarks.report import look_around
from benchmarks.run import ROOT, Run
from benchmarks.side import Work
from edl_horovod.api import run
from edl_horovod.chaos import parse
from edl_horovod.chaos.disturbance import disturb_job
from edl_horovod.config import schema
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import StepLoss, prove, read_losses

BATCH = 64
MOST_RANKS = 4
CHANGES = "1:remove 2:remove 3:kill:0 4:coordinator 5:add"
"""While four ranks train; what is missing comes back by itself."""
RATE = 0.02


def main() -> int:
    """Run the trainings and draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(data=Run(Path(folder)).data("digits"), batch_size=BATCH)
        runs = {
            f"{size} rank{'s' if size > 1 else ''}": _train(Path(folder), work, size, args.steps)
            for size in range(1, MOST_RANKS + 1)
        }
        runs["changing"] = _train(Path(folder), work, MOST_RANKS, args.steps, changes=CHANGES)
    expected = _losses(runs["1 rank"])
    print("{machine}; commit {commit}; {date}".format(**look_around()))
    for name, steps in runs.items():
        apart = np.abs(_losses(steps) / expected - 1)
        sizes = sorted({step.size for step in steps})
        print(f"{name}: sizes {sizes}, largest relative difference {apart.max():.1e}")
    _draw(args.picture, runs, expected)
    return 0


def _train(folder: Path, work: Work, size: int, steps: int, *, changes: str = "") -> list[StepLoss]:
    """One training; the loss of each step."""
    output = folder / f"model-{size}{'-changing' if changes else ''}"
    ring = {"min_np": 1 if changes else size, "max_np": MOST_RANKS, "restart_backoff_seconds": 0.1}
    options = {"launch": schema.LaunchConfig(np=size, threads_per_rank=1), "log_level": "error"}
    options |= {"elastic": schema.ElasticConfig(**ring), "debug": schema.DebugConfig(ledger=True)}
    config = job_config(work, output, spec="smooth", max_steps=steps, **options)
    config = replace(config, train=replace(config.train, learning_rate=RATE))
    job_dir = Path(f"{output}.job")
    with contextlib.ExitStack() as stack:
        if changes:
            thread = threading.Thread(target=_change, args=(job_dir, changes))
            thread.start()
            stack.callback(thread.join)
        run(config)
    proof = prove(JobDir(job_dir))
    assert proof.is_good, proof.violations
    assert proof.num_steps == steps, proof
    return read_losses(JobDir(job_dir).ledger)


def _change(job_dir: Path, changes: str) -> None:
    """Disturb the job as soon as it trains."""
    while not any(e.event.kind == "step" for e in events.read(job_dir / "events.jsonl")):
        time.sleep(0.05)
    disturb_job(JobDir(job_dir), parse(changes), on_action=print)


def _losses(steps: list[StepLoss]) -> np.ndarray:
    return np.array([step.loss for step in steps])


def _draw(path: Path, runs: dict[str, list[StepLoss]], expected: np.ndarray) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (curve, apart, ring) = pyplot.subplots(
        3, 1, sharex=True, figsize=(8, 7), height_ratios=(4, 2, 1), layout="constrained"
    )
    widths = np.linspace(7, 0.8, len(runs))
    for (name, run_steps), width in zip(runs.items(), widths, strict=True):
        losses = _losses(run_steps)
        steps = np.arange(1, len(losses) + 1)
        curve.plot(steps, losses, linewidth=width, label=name)
        if name != "1 rank":
            # Zero has no place on a logarithmic axis; the smallest number there is means "equal".
            difference = np.maximum(np.abs(losses / expected - 1), np.finfo(np.float32).eps / 8)
            apart.plot(steps, difference, linewidth=0.7, label=name)
    sizes = [step.size for step in runs["changing"]]
    ring.step(range(1, len(sizes) + 1), sizes, where="post", color="k")
    curve.set(ylabel="loss of the step", yscale="log", title="The same training on any ring")
    curve.legend(ncols=2)
    apart.set(ylabel="relative difference\nto 1 rank", yscale="log")
    apart.legend(ncols=2, fontsize="small")
    ring.set(ylabel="ranks of\n'changing'", xlabel="step", yticks=range(1, MOST_RANKS + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    sys.exit(main())
