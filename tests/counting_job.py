"""The settings of a job that counts its records (`zoo/counting.py`), and what its weights prove."""

from pathlib import Path

import numpy as np

from edl_horovod import trained_model
from edl_horovod.trained_model.params import read_params
from tests.records import write_records

NUM_RECORDS, BATCH, EPOCHS = 480, 24, 10
ZOO = Path(__file__).parent / "zoo"


def overrides(folder, *, epochs=EPOCHS, **settings):
    """Overrides of a job that is slow until `folder / "hurry"` exists."""
    data = write_records(folder / "data", NUM_RECORDS)
    params = {"num_records": NUM_RECORDS, "rate": float(BATCH), "slow_until": folder / "hurry"}
    job_settings = {
        "model_def": "counting",
        "data": data,
        "train.batch_size": BATCH,
        "train.epochs": epochs,
        "data_plan.lanes": 8,
        "data_plan.shuffle_window": 16,
        **settings,
    }
    return [
        *(f"params.{name}={setting}" for name, setting in params.items()),
        *(f"{key}={setting}" for key, setting in job_settings.items()),
    ]


def assert_each_record_once_an_epoch(output, *, epochs=EPOCHS):
    """The trained model has seen every record as often as there are epochs."""
    files = trained_model.read(output)
    assert files.message.steps == NUM_RECORDS // BATCH * epochs
    counts, clocks = counts_and_clocks(files)
    np.testing.assert_allclose(counts, epochs, rtol=1e-5)
    assert clocks == [NUM_RECORDS * epochs] * len(clocks)


def counts_and_clocks(files):
    """The weights of a trained model that counted."""
    weights = [weight for _, weight in read_params(files.params_files)]
    (counts,) = (weight for weight in weights if weight.ndim)
    return counts, [float(weight) for weight in weights if not weight.ndim]
