"""k8s/ is what `edl train launch=kubernetes` submits; `make golden` writes it anew."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from edl_horovod import image
from edl_horovod.cluster import manifest
from edl_horovod.config.compose import compose
from tests.kube import pod_security
from tests.unit.cluster.test_manifest import SECRET

ROOT = Path(__file__).resolve().parents[3]
K8S = ROOT / "k8s"
JOB = "mnist"
COMMON = [
    "launch=kubernetes",
    "image=registry.example/edl-horovod:1",
    "model_def=mnist_functional_api",
    "data=/data/records/train/*.recordio",
    "output=/data/models/mnist",
    "train.epochs=5",
    "train.batch_size=64",
    "launch.np=2",
    "elastic.max_np=4",
    "kubernetes.volumes={data: {claim: training-data, mount: /data}}",
]


@dataclass(frozen=True)
class Example:
    folder: str
    overrides: tuple[str, ...] = ()
    base: str = ""
    """What it changes; empty where it stands by itself."""


EXAMPLES = [
    Example("base/elastic"),
    Example("base/horovodrun", ("kubernetes.style=horovodrun",)),
    Example("base/mpirun", ("kubernetes.style=mpirun",)),
    Example(
        "overlays/gpu",
        (
            "kubernetes.worker.gpus=1",
            "kubernetes.worker.tolerations="
            "[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
        ),
        base="base/elastic",
    ),
    Example("overlays/low-priority", ("kubernetes.priority_class=low",), base="base/elastic"),
]
FEDERATED = ("federated/coordinator", "federated/party")
"""Written by hand: test_federated_manifests.py."""


def submitted(example):
    """What `edl` would send, by file name; but for the secret, which each job gets anew."""
    typed = [*COMMON, f"kubernetes.name={JOB}", *example.overrides]
    config = image.ensure(compose("train", typed))
    job = manifest.job_manifests(config, name=JOB, namespace="", secret=SECRET)
    return {item["kind"].lower(): item for item in job.all if item["kind"] != "Secret"}


def files(example):
    """The files of an example's folder."""
    items = submitted(example)
    if not example.base:
        content = {f"{name}.yaml": manifest.to_yaml([item]) for name, item in items.items()}
        listed = {"resources": list(content)}
    else:
        base = submitted(next(other for other in EXAMPLES if other.folder == example.base))
        patches = {
            name: {key: item[key] for key in ("apiVersion", "kind")}
            | {"metadata": {"name": item["metadata"]["name"]}, **changes}
            for name, item in items.items()
            if (changes := difference(base[name], item))
        }
        content = {f"{name}.yaml": manifest.to_yaml([patch]) for name, patch in patches.items()}
        listed = {"resources": [f"../../{example.base}"]}
        listed["patches"] = [{"path": name} for name in content]
    lines = ["Made by `make golden`: what edl train submits.", *example.overrides]
    head = "".join(f"# {line}\n" for line in lines)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **listed,
    }
    return {"kustomization.yaml": head + manifest.to_yaml([kustomization]), **content}


def difference(old, new):
    """The JSON merge patch between two objects."""
    changes = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            if inner := difference(old[key], value):
                changes[key] = inner
        elif key not in old or old[key] != value:
            changes[key] = value
    return changes


def merged(old, patch):
    """What a JSON merge patch makes of an object; custom resources are patched so."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def rendered(folder):
    """What kustomize makes of a folder: resources and patches is all that ours use."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    items = {}
    for resource in listed["resources"]:
        path = folder / resource
        listed_items = rendered(path) if path.is_dir() else [yaml.safe_load(path.read_text())]
        items |= {item["kind"]: item for item in listed_items}
    for patch in listed.get("patches", []):
        change = yaml.safe_load((folder / patch["path"]).read_text())
        items[change["kind"]] = merged(items[change["kind"]], change)
    return list(items.values())


@pytest.mark.long(after=1)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.folder)
def test_the_files_are_what_edl_submits(example, pytestconfig):
    folder = K8S / example.folder
    if pytestconfig.getoption("--update-golden"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in files(example).items():
            (folder / name).write_text(text)

    written = {path.name: path.read_text() for path in folder.iterdir()}

    assert written == files(example), "k8s/ is not current: make golden"


@pytest.mark.long(after=1)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.folder)
def test_kustomize_makes_of_them_what_edl_submits(example):
    expected = {item["kind"]: item for item in submitted(example).values()}

    assert {item["kind"]: item for item in rendered(K8S / example.folder)} == expected


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.folder)
def test_they_run_where_pod_security_is_restricted(example):
    violations = [
        pod_security.violations(template)
        for item in rendered(K8S / example.folder)
        for template in pod_security.templates(item)
    ]

    assert violations == [[], []]


@pytest.mark.long(after=1)
@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which has kustomize, is not here"
)
@pytest.mark.parametrize("folder", [*(example.folder for example in EXAMPLES), *FEDERATED])
def test_the_real_kustomize_agrees(folder):
    command = ["kubectl", "kustomize", str(K8S / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    items = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}

    assert items == {item["kind"]: item for item in rendered(K8S / folder)}


def test_they_are_tidy():
    config = YamlLintConfig(file=str(ROOT / ".yamllint"))
    problems = [
        f"{path.relative_to(K8S)}:{problem}"
        for path in sorted(K8S.rglob("*.yaml"))
        for problem in linter.run(path.read_text(), config)
    ]

    assert problems == []


def test_there_is_no_folder_that_no_test_knows():
    folders = {str(path.parent.relative_to(K8S)) for path in K8S.rglob("*.yaml")}

    # tests/unit/test_alerts.py tries the rules for Prometheus.
    assert folders == {example.folder for example in EXAMPLES} | {"monitoring", *FEDERATED}
