"""The import contracts leave no package out: one that they do not name is not protected."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
SUBMIT = "What submits a job never imports what runs on its ranks"
TRAIN = "What runs on the ranks never imports what submits a job"
SHARED = "What both halves use imports neither"


def sources(name: str) -> set[str]:
    (contract,) = (each for each in CONTRACTS["contracts"] if each["name"] == name)
    return {module.removeprefix("edl_horovod.") for module in contract["source_modules"]}


def parts() -> set[str]:
    folder = ROOT / "edl_horovod"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_every_part_of_the_package_stands_in_exactly_one_contract():
    halves = [sources(name) for name in (SUBMIT, TRAIN, SHARED)]
    assert set.union(*halves) == parts()
    assert sum(map(len, halves)) == len(parts())


def test_each_half_is_forbidden_to_the_others():
    submit, train = sources(SUBMIT), sources(TRAIN)
    forbidden = {
        each["name"]: {module.removeprefix("edl_horovod.") for module in each["forbidden_modules"]}
        for each in CONTRACTS["contracts"]
        if each["name"] in (SUBMIT, TRAIN, SHARED)
    }
    assert forbidden[SUBMIT] == train
    assert forbidden[TRAIN] == submit
    assert forbidden[SHARED] == submit | train


def test_the_contract_against_cycles_leaves_no_module_out():
    (contract,) = (one for one in CONTRACTS["contracts"] if one["type"] == "acyclic_siblings")
    assert contract["ancestors"] == ["edl_horovod"]
    assert contract.keys() <= {"name", "type", "ancestors", "ignore_imports"}
