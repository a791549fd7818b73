"""What the tests take for the schema of MPIJobs, against the operator's own where that is there."""

import copy

import pytest
import yaml

from tests.kube import mpijobs
from tests.kube.apiserver.store import Refused
from tests.kube.conftest import CRD, mpijob

TEXT_ONLY = ("description",)
OF_MERGES = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
"""How parts of lists are merged by server-side apply, which `edl` does not use."""
NESTED = ("properties", "items", "additionalProperties")


def rules(schema):
    """What a schema says of a value itself."""
    return {
        key: constraint
        for key, constraint in schema.items()
        if key not in (*TEXT_ONLY, *OF_MERGES, *NESTED)
    }


def differences(ours, reference, path="", /):
    """Where our description says something else than the operator's; it may say less."""
    if reference is None:
        return [f"{path}: the operator has no such field"]
    lines = [] if rules(ours) == rules(reference) else [f"{path}: {rules(ours)} {rules(reference)}"]
    for name, part in ours.get("properties", {}).items():
        lines += differences(part, reference.get("properties", {}).get(name), f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in ours:
            lines += differences(ours[key], reference.get(key), f"{path}[]")
    return lines


@pytest.fixture(scope="module")
def operators():
    if not CRD.is_file():
        pytest.skip(f"the CustomResourceDefinition of mpi-operator 0.8 is not at {CRD}")
    return yaml.load(CRD.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def test_it_says_nothing_but_what_the_operator_says(operators):
    (version,) = operators["spec"]["versions"]
    assert differences(mpijobs.MPIJOB, version["schema"]["openAPIV3Schema"]) == []


def test_the_definition_is_the_operators_but_for_what_it_leaves_out(operators):
    def outside(definition):
        spec = copy.deepcopy(definition["spec"])
        for version in spec["versions"]:
            del version["schema"]
        return definition["apiVersion"], definition["metadata"]["name"], spec

    assert outside(mpijobs.definition()) == outside(operators)


def without(job, *path):
    *outer, last = path
    inner = job
    for key in outer:
        inner = inner[key]
    del inner[last]
    return job


def limited_to(cpu):
    job = mpijob("job")
    (container,) = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"cpu": cpu}}
    return job


WORKER = ("spec", "mpiReplicaSpecs", "Worker")
WRONG = {
    "no replicas": without(mpijob("job"), "spec", "mpiReplicaSpecs"),
    "no containers": without(mpijob("job"), *WORKER, "template", "spec", "containers"),
    "a container without a name": without(
        mpijob("job"), *WORKER, "template", "spec", "containers", 0, "name"
    ),
    "text for a number": mpijob("job", slotsPerWorker="2"),
    "text for the number of workers": mpijob("job", mpiReplicaSpecs={"Worker": {"replicas": "2"}}),
    "a number for a yes or no": mpijob("job", runPolicy={"suspend": 1}),
    "none of the choices": mpijob("job", mpiImplementation="Carrier pigeon"),
    "a condition that is neither": {
        **mpijob("job"),
        "status": {"conditions": [{"type": "Failed", "status": "maybe"}]},
    },
    **{f"{cpu} cores": limited_to(cpu) for cpu in ("two", "1.5.5", "-", "1 Gi")},
}


@pytest.mark.parametrize("job", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(job):
    with pytest.raises(Refused) as refused:
        mpijobs.schema().admit(job, is_strict=False)

    assert refused.value.code == 422


def test_a_field_of_nobody_is_dropped_or_where_asked_for_refused():
    job = mpijob("job", numPigeons=3)

    assert "numPigeons" not in mpijobs.schema().admit(job, is_strict=False)["spec"]
    with pytest.raises(Refused, match=r"spec\.numPigeons"):
        mpijobs.schema().admit(job, is_strict=True)
