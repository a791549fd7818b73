"""The weights of trainings of different kinds on fixed rings, as digests."""

import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.table import Table

from benchmarks.against.checkout import OUR_MODELS, ZOO, Checkout

RING_SIZES = (1, 2, 3)
KINDS = {
    "sgd": f"{OUR_MODELS} model_def=cnn.CnnSpec data=digits/train",
    "batch-norm": f"""
        {ZOO} model_def=mnist_functional_api data=digits/train train.learning_rate=0.02
        validation_data=digits/test train.evaluate_steps=8 train.early_stopping.metric=loss
        train.early_stopping.patience=2 train.early_stopping.restore_best=true""",
    "hashed-table": f"""
        {ZOO} model_def=regressor.wide_and_deep data=employees validation_data=employees
        params.numeric=[age] params.categorical=[role] params.label=salary""",
    "mixed-float16": f"""
        {OUR_MODELS} model_def=smooth data=digits/train optimizer=adam data_plan.shuffle_window=64
        train.precision=mixed_float16 train.accumulate_steps=3 train.clip_norm=1
        train.clip_value=0.05 checkpoint.every_steps=10""",
    "keras-class": f"""
        {OUR_MODELS} model_def=employees.Salary data=employees.csv validation_data=employees.csv""",
}
"""Settings that have as little as possible in common."""
NUM_STEPS = 40
ALL = f"train.batch_size=60 train.epochs=9 train.max_steps={NUM_STEPS} data_plan.seed=7"

Outcomes = dict[str, dict[str, Any]]
"""What came out of each training, by `KIND, RANKS`."""


def train_all(side: Checkout) -> Outcomes:
    """Train all kinds on rings of all sizes."""
    outcomes = {}
    for kind, settings in KINDS.items():
        for num_ranks in RING_SIZES:
            output = f"{kind}-{num_ranks}"
            events = side.train(output, num_ranks, *settings.split(), *ALL.split())
            steps = (event for event in events if event["kind"] == "step")
            evaluations = (event for event in events if event["kind"] == "evaluation")
            outcome = {
                "weights": digest(side.folder / output / "model.keras"),
                # The last step is told in any case, but where a training stops early.
                "loss": [step["loss"] for step in steps if step["step"] == NUM_STEPS],
                "evaluations": [[e["step"], e["examples"], e["metrics"]] for e in evaluations],
                "metrics": json.loads((side.folder / output / "metrics.json").read_text()),
            }
            print(f"{side.root}: {kind} on {num_ranks}: {outcome['weights']}", file=sys.stderr)
            outcomes[f"{kind}, {num_ranks}"] = outcome
    return outcomes


def digest(model: Path) -> str:
    """SHA-256 over the names, types, shapes and values of all variables in a `.keras` file."""
    digests = hashlib.sha256()

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            value = np.asarray(item)
            digests.update(f"{name} {value.dtype} {value.shape}\n".encode() + value.tobytes())

    with zipfile.ZipFile(model) as parts, parts.open("model.weights.h5") as stream:
        h5py.File(stream).visititems(add)
    return digests.hexdigest()


def compare(base: Outcomes, here: Outcomes) -> Table:
    """The outcomes of both sides beside each other."""
    table = Table("Training, ranks", "Base", "Here", "Same")
    for key, outcome in base.items():
        names = differences(outcome, here[key])
        verdict = f"no: {', '.join(names)}" if names else "yes"
        table.add_row(key, outcome["weights"][:12], here[key]["weights"][:12], verdict)
    return table


def differences(base: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The parts of a training's outcome that the two sides do not share."""
    return [name for name in base if base[name] != here[name]]
