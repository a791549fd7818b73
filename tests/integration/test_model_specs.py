"""Models in files, as a model spec names them: 2 ranks, a worker killed, and what comes of it."""

import math
import signal

import numpy as np
import pytest
import yaml

from tests.frameworks import FRAMEWORKS

NUM_RECORDS, EPOCHS = 240, 12
RANDOM = np.random.default_rng(8)


def torch_sequence(folder):
    """The module of the reference document, saved whole."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, 1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 1),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Dropout2d(p=0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout2d(p=0.5),
        nn.Linear(128, 10),
        nn.LogSoftmax(dim=1),
    )
    torch.save(model, folder / "pytorch_sequence.pt")
    return {
        "name": "PytorchFLModel",
        "path": "ibmfl.model.pytorch_fl_model",
        "spec": {
            "model_name": "pytorch-nn",
            "model_definition": "pytorch_sequence.pt",
            "optimizer": "optim.Adam",
            "loss_criterion": "nn.NLLLoss",
        },
    }


KINDS = {"torch": [torch_sequence]}
CASES = [
    pytest.param(*framework.values, make, id=make.__name__, marks=framework.marks)
    for framework in FRAMEWORKS
    for make in KINDS.get(framework.values[0], [])
]


def write_pictures(folder):
    """Pictures whose class is how bright they are."""
    classes = RANDOM.integers(0, 10, size=NUM_RECORDS)
    noise = RANDOM.normal(scale=0.05, size=(NUM_RECORDS, 1, 28, 28))
    pictures = noise + classes[:, None, None, None] / 5 - 1
    np.savez(folder / "pictures.npz", x=pictures.astype(np.float32), y=classes)
    return folder / "pictures.npz"


@pytest.mark.parametrize(("name", "make"), CASES)
def test_a_model_in_files_survives_a_kill_and_is_used(start, name, make, tmp_path):
    sections = {"model": make(tmp_path), "fusion": {"name": "IterAvgFusionHandler"}}
    (tmp_path / "config.yml").write_text(yaml.safe_dump(sections))
    data = f"data={write_pictures(tmp_path)}"
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    hurry = tmp_path / "hurry"
    job = start(
        "train",
        f"model_spec={tmp_path / 'config.yml'}",
        data,
        f"input_fn={name}_rows.feed",
        f"params.slow_until={hurry}",
        "train.batch_size=24",
        f"train.epochs={EPOCHS}",
        "launch.np=2",
        **own_cache,
    )
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    hurry.touch()
    job.succeed()
    assert job.events("job")[-1].event.steps == NUM_RECORDS // 24 * EPOCHS
    assert "sections are for a federation and have no effect here: fusion" in job.printed
    trained = f"trained_model={tmp_path / 'out'}"
    evaluated = start("evaluate", trained, data).succeed()
    loss = evaluated.events("job")[-1].event.metrics["loss"]
    assert loss < math.log(10) / 2
    start("predict", trained, data, f"output={tmp_path / 'predicted'}").succeed()
    assert any((tmp_path / "predicted").iterdir())
