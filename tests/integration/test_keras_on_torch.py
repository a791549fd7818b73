"""A model of Keras 3 whose backend is PyTorch, on PyTorch's ring."""

import signal

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from edl_horovod.trained_model.params import read_params
from tests.frameworks import is_there
from tests.records import write_records

pytestmark = [
    pytest.mark.further,
    pytest.mark.skipif(
        not (is_there("torch") and is_there("tensorflow")), reason="needs Keras and PyTorch"
    ),
]


def test_it_trains_through_a_kill_and_is_evaluated_and_predicts(start, tmp_path):
    data = write_records(tmp_path / "data", 200)
    on_torch = {"KERAS_BACKEND": "torch"}
    job = start(
        "train",
        "framework=torch",
        "model_def=torch_keras",
        "params.dropout=0.1",
        f"data={data}",
        f"validation_data={data}",
        "train.batch_size=20",
        "train.epochs=60",
        "launch.np=2",
        "debug.ledger=true",
        **on_torch,
    )
    job.wait_for_step(20)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    job.succeed()
    # The moving statistics are no variables of an optimizer, and yet the same on all ranks.
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    losses = [recorded.event.loss for recorded in job.events("step")]
    assert losses[-1] < 0.5 * losses[0]
    weights = dict(read_params(trained_model.read(tmp_path / "out").params_files))
    (moving,) = (value for name, value in weights.items() if name.endswith("moving_variance"))
    assert not np.allclose(moving, 1)

    model = (tmp_path / "out").rename(tmp_path / "model")
    trained = job.events("evaluation")[-1].event.metrics
    scored = start("evaluate", f"trained_model={model}", f"data={data}", **on_torch).succeed()
    assert scored.events("job")[-1].event.metrics == pytest.approx(trained, rel=1e-5)
    start("predict", f"trained_model={model}", f"data={data}", **on_torch).succeed()
