"""The import contracts leave no package out: one that they do not name is not protected."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}
SUBMIT = "What submits a job never imports what runs on its ranks"
TRAIN = "What runs on the ranks never imports what submits a job"


def packages(modules: list[str]) -> set[str]:
    return {module.removeprefix("edl_horovod.") for module in modules}


def test_each_half_is_forbidden_to_the_other():
    submit, train = (packages(CONTRACTS[name]["source_modules"]) for name in (SUBMIT, TRAIN))
    assert packages(CONTRACTS[SUBMIT]["forbidden_modules"]) == train
    assert packages(CONTRACTS[TRAIN]["forbidden_modules"]) == submit
    assert not submit & train


def test_every_package_has_a_layer():
    layers = CONTRACTS["Layers"]
    assert layers["exhaustive"]
    names = {name.strip() for layer in layers["layers"] for name in layer.split("|")}
    folder = ROOT / "edl_horovod"
    parts = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert names == parts | {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_the_contract_against_cycles_leaves_no_module_out():
    contract = CONTRACTS["No cycles"]
    assert contract["ancestors"] == ["edl_horovod"]
    assert contract.keys() <= {"name", "type", "ancestors", "ignore_imports"}
