"""Models in PyTorch's files: jobs that a model spec describes, and a zoo's models as files."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from edl_horovod.config.model_spec import section_of
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models.spec_zoo import FileModel
from edl_horovod.models.zoo import Overrides, load_spec
from tests.later import LATER

if LATER:
    import torch
    from safetensors.torch import save_model
    from torch import nn

    from edl_horovod.frameworks.torch import file_models
    from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
    from tests.component.frameworks.torch.rings import assert_state, loop

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 3)

    def forward(self, x):
        return self.second(self.first(x).tanh())

class Empty(nn.Module):
    def forward(self, x):
        return x
"""
ADAM = "model.spec.optimizer=optim.Adam"
CLASSES = "model.spec.loss_criterion=nn.CrossEntropyLoss"
TRUSTED = (ADAM, CLASSES, "trust=model")
RANDOM = np.random.default_rng(5)
NUM_RECORDS = 24

CHECKPOINTS = {
    "of Lightning": lambda weights: {"epoch": 3, "state_dict": weights, "optimizer_states": []},
    "of a tutorial": lambda weights: {"model_state_dict": weights, "loss": torch.ones(())},
    "of DistributedDataParallel": lambda weights: {f"module.{n}": w for n, w in weights.items()},
    "of a compiled wrapper": lambda weights: {
        "state_dict": {f"net._orig_mod.{n}": w for n, w in weights.items()}
    },
}

WRONG = {
    "an optimizer": (["model.spec.optimizer=optim.Adamm"], r"'Adamm'.*'Adam"),
    "a loss": (["model.spec.loss_criterion=nn.NLLoss"], r"'NLLoss'.*'NLLLoss'"),
    "an argument": (
        ["model.spec.optimizer={name: optim.Adam, args: {beta: 1}}"],
        r"Adam .*'beta'.*'betas'",
    ),
    "both words": (["model.spec.optimizer={name: optim.Adam, value: a}"], "value.*name"),
    "a sum": (
        ["model.spec.loss_criterion={name: nn.NLLLoss, args: {reduction: sum}}"],
        "reduction",
    ),
    "weights of classes": (
        ["model.spec.loss_criterion={name: nn.NLLLoss, args: {weight: [1, 2]}}"],
        "train.class_weight",
    ),
    "a key of Keras": (["model.spec.compile_options={}"], "'compile_options'"),
    "no loss": ([], "lacks loss"),
}

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


def sequence():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.LogSoftmax(dim=1))


@pytest.fixture
def rows(tmp_path):
    """As many records as a step has, with NumPy's own types."""
    x = RANDOM.normal(size=(NUM_RECORDS, 4))
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=x[:, :3].argmax(1))
    return f"data={tmp_path / 'rows.npz'}"


@pytest.fixture
def net(tmp_path):
    """The file of a class; its weights are of the other fixtures."""
    (tmp_path / "net.py").write_text(NET)
    names = {}
    exec(NET, names)
    torch.manual_seed(4)
    return names["Net"]()


def spec(tmp_path, **values):
    """Settings of a model spec."""
    fields = {"model_name": "rows", **values}
    return ["model.name=PytorchFLModel", *(f"model.spec.{key}={v}" for key, v in fields.items())]


def whole(tmp_path, module):
    torch.save(module, tmp_path / "model.pt")
    return spec(tmp_path, model_definition=tmp_path / "model.pt")


def test_a_whole_module_trains_as_in_a_loop_of_its_user(run, rows, tmp_path):
    module = sequence()
    settings = whole(tmp_path, module)
    steps = 4
    done = run(
        "train",
        *settings,
        rows,
        "model.spec.optimizer={name: optim.Adam, args: {betas: [0.8, 0.9]}}",
        "model.spec.loss_criterion=nn.NLLLoss",
        "train.learning_rate=0.02",
        f"train.epochs={steps}",
    )
    arrays = np.load(tmp_path / "rows.npz")
    x, y = torch.tensor(arrays["x_train"]).float(), torch.tensor(arrays["y_train"])
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, betas=(0.8, 0.9))
    losses = loop(module, optimizer, [x] * steps, lambda module, x: nn.NLLLoss()(module(x), y))
    assert list(done.losses.values()) == pytest.approx(losses, rel=1e-5)
    assert_state(done.state, module, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_file_of_settings_names_the_model_and_its_training_is_carried_on(run, rows, tmp_path):
    torch.save(sequence(), tmp_path / "model.pt")
    federated = {
        "model": {
            "name": "PytorchFLModel",
            "path": "ibmfl.model.pytorch_fl_model",
            "spec": {
                "model_name": "pytorch-nn",
                "model_definition": "model.pt",
                "optimizer": "optim.Adam",
                "loss_criterion": "nn.NLLLoss",
            },
        },
        "fusion": {"name": "IterAvgFusionHandler"},
    }
    (tmp_path / "config.yml").write_text(yaml.safe_dump(federated))
    settings = [f"model_spec={tmp_path / 'config.yml'}", rows, "train.epochs=6"]
    whole = run("train", *settings, job="whole")
    run("train", *settings, until=2)
    second = run("train", *settings, "resume=must")
    assert second.losses == pytest.approx({3: whole.losses[3], **second.losses}, rel=1e-5)
    (tmp_path / "model.pt").unlink()
    trained = f"trained_model={tmp_path / 'job-out'}"
    assert run("evaluate", trained, rows, job="e").result.metrics["loss"] < whole.losses[1]
    run("predict", trained, rows, f"output={tmp_path / 'predicted'}", job="p")


def of_net(tmp_path, symbol="Net", **fields):
    return spec(tmp_path, model_architecture=f"{tmp_path}/net.py:{symbol}", **fields)


def first_loss(net, tmp_path):
    arrays = np.load(tmp_path / "rows.npz")
    outputs = net(torch.tensor(arrays["x_train"]).float())
    loss = nn.functional.cross_entropy(outputs, torch.tensor(arrays["y_train"]))
    return pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_class_with_its_weights_trains(run, rows, net, kind, tmp_path):
    file = tmp_path / f"weights.{kind}"
    if kind == "pt":
        torch.save(net.state_dict(), file)
    else:
        save_model(net, str(file))
    settings = of_net(tmp_path, model_weights=file)
    done = run("train", *settings, rows, *TRUSTED, "train.max_steps=1")
    assert done.losses[1] == first_loss(net, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_weights_in_a_checkpoint_of_another_training_are_taken(
    run, rows, net, checkpoint, tmp_path
):
    file = tmp_path / "last.ckpt"
    torch.save(checkpoint(net.state_dict()), file)
    loss = first_loss(net, tmp_path)
    common = (rows, *TRUSTED, "train.max_steps=1")
    assert run("train", *of_net(tmp_path, model_weights=file), *common).losses[1] == loss
    summary = file_models.summarize(FileModel(name="x", weights=file))
    assert [layer.num_parameters for layer in summary.layers] == [25, 18]
    done = run("train", *of_net(tmp_path), *common, f"init_from={file}", job="more")
    assert done.losses[1] == loss


@pytest.mark.long
def test_a_file_that_a_training_cannot_begin_with_is_told(run, rows, net, tmp_path):
    file = tmp_path / "w.pt"
    for content, message in (
        ({"module.first.weight": torch.ones(5, 4)}, r"first\.bias .*missing"),
        ({**net.state_dict(), "first.bias": torch.ones(3)}, r"first\.bias .*\[3\]"),
        ({**net.state_dict(), "third": torch.ones(3)}, "third"),
        ({"epoch": 3}, "'state_dict'"),
        (None, r"torch\.save"),
    ):
        if content is None:
            file.write_text("text")
        else:
            torch.save(content, file)
        with pytest.raises(UserCodeError, match=message):
            run("train", *of_net(tmp_path), rows, *TRUSTED, f"init_from={file}")


@pytest.mark.usefixtures("net")
def test_a_class_begins_anew_with_its_parameters(run, rows, tmp_path):
    settings = (*of_net(tmp_path), rows, f"model_zoo={tmp_path}", ADAM, CLASSES)
    done = run("train", *settings, "params.width=7", "train.max_steps=1")
    assert done.state["first.weight"].shape == (7, 4)


def test_settings_take_the_place_of_what_a_spec_says(run, rows, tmp_path):
    settings = whole(tmp_path, sequence())
    done = run("train", *settings, rows, ADAM, "optimizer=sgd", "loss=NLLLoss", "train.max_steps=1")
    assert type(done.step.optimizer).__name__ == "SGD"


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_what_a_spec_says_wrongly_is_told(run, rows, settings, message, tmp_path):
    with pytest.raises((ConfigError, UserCodeError), match=message):
        run("train", *whole(tmp_path, sequence()), rows, *settings)


@pytest.mark.long
def test_files_that_do_not_fit_are_told(run, rows, net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    with_weights = of_net(tmp_path, model_weights=tmp_path / "weights.pt")
    for error, settings, message in (
        (
            UserCodeError,
            (*with_weights, *TRUSTED, "params.width=6"),
            r"first\.weight .*\[5, 4\].*\[6",
        ),
        (ConfigError, (*with_weights, ADAM, CLASSES), "trust=model"),
        (UserCodeError, (*of_net(tmp_path, "Nett"), "trust=model"), r"'Nett'.*'Net'"),
        (
            UserCodeError,
            spec(tmp_path, model_definition=tmp_path / "weights.pt"),
            r"weights\.pt.*model_architecture",
        ),
        (UserCodeError, (*of_net(tmp_path, "Empty"), *TRUSTED), "no parameters"),
    ):
        with pytest.raises(error, match=message):
            run("train", *settings, rows)


def test_a_worker_without_the_command_is_told_what_it_lacks(run, rows, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.name="):
        run("train", *whole(tmp_path, sequence()), rows, by_command=False)


def test_columns_without_numbers_or_without_a_label_are_told(run, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros((24, 4)), b=np.zeros(24))
    settings = [*whole(tmp_path, sequence()), ADAM, "model.spec.loss_criterion=nn.NLLLoss"]
    with pytest.raises(UserCodeError, match="of numbers"):
        run("train", *settings)
    with pytest.raises(UserCodeError, match=r"target.*a, b"):
        run("train", *settings, f"data={tmp_path / 'x.npz'}")


def test_a_summary_has_layers_and_options(tmp_path):
    torch.save(sequence(), tmp_path / "model.pt")
    summary = file_models.summarize(
        FileModel(
            name="x",
            definition=tmp_path / "model.pt",
            compile_options={"optimizer": {"name": "optim.Adam", "args": {"lr": 0.1}}},
        )
    )
    assert [(layer.name, layer.kind, layer.num_parameters) for layer in summary.layers] == [
        ("0", "Linear", 30),
        ("1", "ReLU", 0),
        ("2", "Linear", 21),
        ("3", "LogSoftmax", 0),
    ]
    assert summary.layers[0].shape == "weight 6x4, bias 6"
    assert (summary.optimizer, summary.loss, summary.unsafe) == ("optim.Adam(lr=0.1)", "", ())


def test_a_summary_of_weights_groups_them(tmp_path):
    save_model(sequence(), str(tmp_path / "w.safetensors"))
    torch.save(sequence().state_dict(), tmp_path / "w.pt")
    for name in ("w.pt", "w.safetensors"):
        summary = file_models.summarize(FileModel(name="x", weights=tmp_path / name))
        assert [(layer.name, layer.num_parameters) for layer in summary.layers] == [
            ("0", 30),
            ("2", 21),
        ]


@pytest.fixture
def zoo(tmp_path, write_zoo):
    write_zoo(line=LAYERS, rows=ROWS, imports=IMPORTS, lazy=LAZY)
    write_zoo("zoo/other", line="import line\n")
    return tmp_path / "zoo"


def loaded(zoo, model_def, **params):
    without_data = Overrides(has_own_dataset=True)
    return load_spec(
        str(zoo), model_def, params=params, plain_models=PLAIN_MODELS, overrides=without_data
    )


def written(zoo, model_def, **params):
    folder = zoo.parent / "written"
    folder.mkdir()
    files = file_models.write(loaded(zoo, model_def, **params), folder)
    section = section_of("torch", {"model_name": "line", **files.spec})
    (folder / "config.yml").write_text(yaml.safe_dump({"model": section}))
    return files, f"model_spec={folder / 'config.yml'}"


@pytest.mark.long
def test_layers_of_pytorch_are_written_with_their_optimizer(run, zoo):
    files, setting = written(zoo, "line.Line", width=3)
    assert files.spec["optimizer"] == {"name": "optim.SGD", "args": {"lr": 0.02, "momentum": 0.5}}
    assert "custom_objects" not in files.spec
    (note,) = files.left_out
    assert "the loss" in note
    rows = ("data=dataset:rows.Rows", f"model_zoo={zoo}")
    done = run("train", setting, *rows, "loss=MSELoss", "train.epochs=10")
    assert done.state["0.weight"].shape == (3, 4)
    assert done.losses[20] < 0.5 * done.losses[1]


def test_files_of_own_classes_come_along(run, write_zoo, tmp_path):
    text = (ZOO / "torch_modules.py").read_text()
    zoo = write_zoo(torch_modules=f"import beside\n{text}", beside="NUMBER = 1\n")
    files, setting = written(tmp_path / "zoo", "torch_modules.Regression")
    (named,) = files.spec["custom_objects"]
    assert named == {"key": "Regression", "value": "Regression", "path": "torch_modules.py"}
    assert (tmp_path / "written" / "beside.py").is_file()
    rows = ("data=dataset:torch_modules.Points", zoo, "input_fn=torch_modules.feed")
    done = run("train", setting, *rows, "trust=model", "train.epochs=20")
    assert done.losses[80] < 0.05 * done.losses[1]


@pytest.mark.parametrize(
    ("model_def", "message"), [("imports.Net", "line.py"), ("lazy", "create_model of .*lazy")]
)
def test_what_files_cannot_hold_is_told(zoo, model_def, message):
    with pytest.raises(UserCodeError, match=message):
        file_models.write(loaded(zoo, model_def), zoo)
