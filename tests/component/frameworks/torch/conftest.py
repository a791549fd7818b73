"""Tasks on PyTorch in this process, as the only rank of its ring, without a launcher."""

import contextlib
import copy
import json
import textwrap
from pathlib import Path

import pytest

from edl_horovod.job.events import EventLog
from edl_horovod.models import spec_zoo
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Dismissed
from edl_horovod.tasks.warm import make_warm
from tests.alone import ME, Alone
from tests.frameworks import is_there
from tests.jobs import config_of
from tests.records import write_records
from tests.watched_framework import watch

# Not all files here import PyTorch themselves.
collect_ignore_glob = [] if is_there("torch") else ["test_*.py"]
ZOO = Path(__file__).parents[3] / "zoo"
MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        INIT

    def forward(self, x):
        return FORWARD

    METHODS

    def loss(self, outputs, labels):
        return nn.functional.mse_loss(outputs, labels)

    def configure_optimizers(self, lr=0.05):
        return torch.optim.SGD(self.parameters(), lr, momentum=0.9)
"""


class Run:
    """What a task did, step by step; a training's batches, and its module before the first."""

    def __init__(self):
        self.losses = {}
        self.batches = {}
        self.module = None
        self.result = None
        self.state = {}
        self.step = None
        self.work = None

    def losses_after(self, last):
        return {step: loss for step, loss in self.losses.items() if step > last}


@pytest.fixture
def watched(monkeypatch):
    """PyTorch as the only rank of its ring, whose trainings a test may see and change."""
    from tests import torch_alone

    return watch("torch", torch_alone.FRAMEWORK, monkeypatch, horovod="")


@pytest.fixture
def run(tmp_path, monkeypatch, watched):
    """Run a task on 100 records: `run("train", "train.epochs=2", until=7)`; gives a `Run`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = write_records(tmp_path / "data", 100)

    def run_it(task, *overrides, until=0, job="job", by_command=True):
        keys = {text.partition("=")[0] for text in overrides}
        defaults = {"data": data, "job_dir": str(tmp_path / job), "overwrite": "true"}
        if task == "train":
            defaults |= {
                "framework": "torch",
                "model_zoo": str(ZOO),
                "model_def": "torch_tiny",
                "train.batch_size": 24,
                "output": str(tmp_path / f"{job}-out"),
                "data_plan.lanes": 6,
                "data_plan.shuffle_window": 16,
            }
        if any(key.startswith("model.") or key == "model_spec" for key in keys):
            keys |= {"model_def", "framework"}
        settings = [f"{key}={value}" for key, value in defaults.items() if key not in keys]
        config = config_of(task, [*settings, *overrides])
        if by_command:  # Which writes a zoo of a model in files.
            config = spec_zoo.with_zoo(config)
        Path(config.job_dir).mkdir(exist_ok=True)
        done = Run()

        def before_step(batch):
            done.work.close()  # Its checkpoint: these steps are faster than any disk.
            if done.module is None:
                done.module = copy.deepcopy(watched.made_step.model.runner.module)
            done.batches[done.work.state.step + 1] = batch

        def after_step(sums):
            done.losses[done.work.state.step + 1] = sums.loss

        watched.before_step, watched.after_step = before_step, after_step
        with EventLog(tmp_path / "events.jsonl", "test") as log, make_warm(config, log, ME) as work:
            done.work = work
            done.step = watched.made_step
            with contextlib.suppress(Dismissed):
                done.result = loop.run(work, Alone(until), log)
            done.state = {name: variable.numpy() for name, variable in work.state.variables.items()}
        return done

    return run_it


@pytest.fixture
def use_trained(run, tmp_path):
    """Evaluate a trained model, which gives what its training found, and predict with it.

    Returns:
        What the evaluation gave, and the schema's features of the predictions.
    """

    def use(trained, data, *, rel=1e-6):
        model = f"trained_model={tmp_path}/job-out"
        evaluated = run("evaluate", model, data, job="evaluation").result
        assert evaluated.metrics == pytest.approx(trained.result.metrics, rel=rel)
        run("predict", model, data, f"output={tmp_path}/p.recordio", job="prediction")
        schema = json.loads((tmp_path / "p.recordio.schema.json").read_text())
        return evaluated, schema["features"]

    return use


@pytest.fixture
def write_zoo(tmp_path):
    """Write the files of a zoo by their names; returns the setting that names it."""

    def write(folder="zoo", **texts):
        zoo = tmp_path / folder
        zoo.mkdir(exist_ok=True)
        for name, text in texts.items():
            (zoo / f"{name}.py").write_text(text)
        return f"model_zoo={zoo}"

    return write


@pytest.fixture
def write_module(write_zoo):
    """Write a module some lines of which a test gives; returns the settings that name it."""

    def write(init="", forward="self.layer(x)", methods="", *, change=("", ""), folder="zoo"):
        text = MODULE
        places = (("INIT", init, 8), ("FORWARD", forward, 0), ("METHODS", methods, 4))
        for place, lines, depth in places:
            lines = textwrap.indent(textwrap.dedent(lines).strip(), " " * depth).strip()
            text = text.replace(place, lines)
        return write_zoo(folder, net=text.replace(*change)), "model_def=net"

    return write
