"""Models of a zoo that are written as the files of a spec, and train as such."""

from pathlib import Path

import pytest
import yaml

from edl_horovod.config.model_spec import section_of
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch import file_models
from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
from edl_horovod.models.zoo import Overrides, load_spec

LAYERS = """
import torch
from edl_horovod import ElasticDLSpec

class Line(ElasticDLSpec):
    def __init__(self, context=None, width=4):
        super().__init__(context)
        self._width = width

    def create_model(self):
        return torch.nn.Sequential(torch.nn.Linear(4, self._width), torch.nn.Linear(self._width, 1))

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs, labels):
        return (outputs - labels).square().mean()

    def create_optimizer(self, model, lr=0.02):
        return torch.optim.SGD(model.parameters(), lr, momentum=0.5)
"""
IMPORTS = (
    "import other.line\nfrom torch import nn\n\nclass Net(nn.Module):\n    default_loss = len\n"
)
LAZY = "import torch\n\ndef custom_model():\n    return torch.nn.LazyLinear(1)\n"
ROWS = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, place):
        x = torch.full((4,), place / 48)
        return x, x.sum(0, keepdim=True)
"""
ZOO = Path(__file__).parents[3] / "zoo"


@pytest.fixture
def zoo(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    for name, text in (("line", LAYERS), ("rows", ROWS), ("imports", IMPORTS), ("lazy", LAZY)):
        (folder / f"{name}.py").write_text(text)
    (folder / "other").mkdir()
    (folder / "other" / "line.py").write_text("import line\n")
    return folder


def loaded(zoo, model_def, **params):
    without_data = Overrides(has_own_dataset=True)
    return load_spec(
        str(zoo), model_def, params=params, plain_models=PLAIN_MODELS, overrides=without_data
    )


def written(zoo, model_def, **params):
    folder = zoo.parent / "written"
    folder.mkdir()
    made = file_models.write(loaded(zoo, model_def, **params), folder)
    section = section_of("torch", {"model_name": "line", **made.spec})
    (folder / "config.yml").write_text(yaml.safe_dump({"model": section}))
    return made, f"model_spec={folder / 'config.yml'}"


def test_layers_of_pytorch_are_written_with_their_optimizer(run, zoo):
    made, given = written(zoo, "line.Line", width=3)
    assert made.spec["optimizer"] == {"name": "optim.SGD", "args": {"lr": 0.02, "momentum": 0.5}}
    assert "custom_objects" not in made.spec
    (note,) = made.left_out
    assert "the loss" in note
    rows = ("data=dataset:rows.Rows", f"model_zoo={zoo}")
    done = run("train", given, *rows, "loss=MSELoss", "train.epochs=10")
    assert done.state["0.weight"].shape == (3, 4)
    assert done.losses[20] < 0.5 * done.losses[1]


def test_files_of_own_classes_come_along(run, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    text = (ZOO / "torch_modules.py").read_text()
    (zoo / "torch_modules.py").write_text(f"import beside\n{text}")
    (zoo / "beside.py").write_text("NUMBER = 1\n")
    made, given = written(zoo, "torch_modules.Regression")
    (named,) = made.spec["custom_objects"]
    assert named == {"key": "Regression", "value": "Regression", "path": "torch_modules.py"}
    assert (tmp_path / "written" / "beside.py").is_file()
    rows = ("data=dataset:torch_modules.Points", f"model_zoo={zoo}")
    done = run(
        "train", given, *rows, "input_fn=torch_modules.feed", "trust=model", "train.epochs=20"
    )
    assert done.losses[80] < 0.05 * done.losses[1]


@pytest.mark.parametrize(
    ("model_def", "message"),
    [("imports.Net", "line.py"), ("lazy", "create_model of .*lazy")],
)
def test_what_files_cannot_hold_is_told(zoo, model_def, message):
    with pytest.raises(UserCodeError, match=message):
        file_models.write(loaded(zoo, model_def), zoo)
