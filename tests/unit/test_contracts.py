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
SHARED = "What both halves use imports neither"


def packages(contract: str, key: str = "source_modules") -> set[str]:
    return {module.removeprefix("edl_horovod.") for module in CONTRACTS[contract][key]}


def parts() -> set[str]:
    folder = ROOT / "edl_horovod"
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    return folders | {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_every_part_of_the_package_stands_in_exactly_one_contract():
    halves = [packages(name) for name in (SUBMIT, TRAIN, SHARED)]
    assert set.union(*halves) == parts()
    assert sum(map(len, halves)) == len(parts())


def test_each_half_is_forbidden_to_the_others():
    submit, train = packages(SUBMIT), packages(TRAIN)
    assert packages(SUBMIT, "forbidden_modules") == train
    assert packages(TRAIN, "forbidden_modules") == submit
    assert packages(SHARED, "forbidden_modules") == submit | train


def test_every_package_has_a_layer():
    layers = CONTRACTS["Layers"]
    assert layers["exhaustive"]
    assert {name.strip() for layer in layers["layers"] for name in layer.split("|")} == parts()


def test_the_contract_against_cycles_leaves_no_module_out():
    contract = CONTRACTS["No cycles"]
    assert contract["ancestors"] == ["edl_horovod"]
    assert contract.keys() <= {"name", "type", "ancestors", "ignore_imports"}
