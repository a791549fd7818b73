"""`edl spec` on real files: what it prints, that nothing of the files runs, and what it writes."""

import json
import os

import pytest
import yaml

from edl_horovod.cli.main import main
from tests.frameworks import is_there
from tests.later import LATER

if LATER:
    torch = pytest.importorskip("torch")


@pytest.fixture
def show(tmp_path, capfd):
    def run(*arguments, **spec):
        section = {"name": "PytorchFLModel", "spec": {"model_name": "digits", **spec}}
        (tmp_path / "config.yml").write_text(yaml.safe_dump({"model": section}))
        code = main(["spec", "show", *arguments, str(tmp_path / "config.yml")])
        out, err = capfd.readouterr()
        return code, out, err

    return run


class Harmful:
    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self._marker}",)


@pytest.mark.long
def test_layers_and_options_are_shown(show, tmp_path):
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 300)), tmp_path / "m.pt")
    code, out, _ = show(model_definition="m.pt", optimizer="optim.Adam")
    assert code == 0
    lines = out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if line[:1].isalpha())
    assert facts["model"] == "digits (PytorchFLModel)"
    assert facts["parameters"] == "1,500"
    assert facts["loss"].startswith("none")
    assert facts["unsafe"].startswith("nothing")
    assert lines[-1].split() == ["0", "Linear", "1,500", "weight", "300x4,", "bias", "300"]


@pytest.mark.long
def test_what_is_unsafe_is_shown_and_not_run(show, tmp_path):
    marker = tmp_path / "marker"
    torch.save({"w": Harmful(marker)}, tmp_path / "m.pt")
    code, out, _ = show(model_definition="m.pt")
    assert code == 0
    assert "trust=model" in out
    assert f"system of {tmp_path / 'm.pt'}" in out
    assert not marker.exists()


@pytest.mark.long
def test_programs_get_json(show, tmp_path):
    torch.save(torch.nn.Linear(4, 3), tmp_path / "m.pt")
    _, out, _ = show("-o", "json", model_definition="m.pt")
    described = json.loads(out)
    assert described["kind"] == "a module (torch.save)"
    assert [layer["kind"] for layer in described["layers"]] == ["Linear"]


@pytest.mark.further
def test_an_error_of_the_files_is_one_of_the_command(show, tmp_path):
    (tmp_path / "m.pt").write_text("text")
    code, _, err = show(model_definition="m.pt")
    assert code == 3
    assert "torch.save" in err
    code, _, err = show(model_definition="absent.pt")
    assert "absent.pt" in err


def test_a_spec_that_a_function_returns_is_not_called(tmp_path, capsys):
    section = {"name": "PytorchFLModel", "spec": "module:function"}
    (tmp_path / "config.yml").write_text(yaml.safe_dump({"model": section}))
    assert main(["spec", "show", str(tmp_path / "config.yml")]) != 0
    assert "no code" in capsys.readouterr().err


@pytest.mark.further
@pytest.mark.skipif(not is_there("torch"), reason="make setup FRAMEWORK=torch")
def test_a_model_of_the_zoo_is_written_whole_or_not_at_all(tmp_path, capfd):
    zoo, output = tmp_path / "zoo", tmp_path / "digits"
    zoo.mkdir()
    (zoo / "own.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    default_optimizer = 'adam'\n"
        "    def __init__(self, width=2):\n        super().__init__()\n"
        "        self.line = nn.Linear(width, 1)\n"
    )
    words = ["spec", "write", "own.Net", "--framework", "torch", "--model-zoo", str(zoo)]
    assert main([*words, "--params", "depth=3", "--output", str(output)]) == 2
    assert not output.exists()
    assert "depth" in capfd.readouterr().err
    assert main([*words, "--params", "width=3", "--output", str(output)]) == 0
    assert str(output / "config.yml") in capfd.readouterr().out
    section = yaml.safe_load((output / "config.yml").read_text())["model"]
    assert section["name"] == "PytorchFLModel"
    assert section["spec"]["model_definition"] == "model.pt"
    assert main(["spec", "show", str(output / "config.yml")]) == 0
    assert "weight 1x3, bias 1" in capfd.readouterr().out
    assert main([*words, "--output", str(output)]) == 7
    assert "earlier result" in capfd.readouterr().err
