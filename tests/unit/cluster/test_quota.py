"""What quotas have room for, against pods of known size."""

from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from edl_horovod.cluster.preflight import num_workers_with_room, quantity, shortages
from tests.unit.cluster.test_manifest import job_of

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def mpijob():
    """4 workers of 2 cores, 2 GiB and a GPU each, and a launcher of half a core and 512 MiB."""
    worker = ("cpu=2", "memory=2Gi", "gpus=1")
    launcher = ("cpu=500m", "memory=512Mi")
    return job_of(
        *(f"kubernetes.worker.{resource}" for resource in worker),
        *(f"kubernetes.launcher.{resource}" for resource in launcher),
    ).mpijob


@dataclass(frozen=True)
class Case:
    name: str
    hard: dict
    used: dict = field(default_factory=dict)
    short: dict = field(default_factory=dict)
    """Resources that there are too few of, and whether there never are enough."""
    spec: dict = field(default_factory=dict)


def quota_of(case):
    status = {"hard": case.hard, "used": case.used}
    return {"metadata": {"name": "q"}, "spec": {"hard": case.hard, **case.spec}, "status": status}


@pytest.mark.parametrize(
    "case",
    [
        Case("all fits exactly", {"pods": "5", "cpu": "8500m", "memory": "8704Mi"}),
        Case("of other kinds of objects", {"count/secrets": "0", "services": "0"}),
        Case("too few pods", {"pods": "4"}, short={"pods": True}),
        Case("too few pods by count", {"count/pods": "4"}, short={"count/pods": True}),
        Case("no room beside others", {"pods": "6"}, {"pods": "2"}, {"pods": False}),
        Case("too small whatever others use", {"pods": "4"}, {"pods": "4"}, short={"pods": True}),
        Case("too few cores", {"requests.cpu": "8"}, short={"requests.cpu": True}),
        Case("too low a limit", {"limits.memory": "8.25Gi"}, short={"limits.memory": True}),
        Case("too few GPUs", {f"requests.{GPU}": "3"}, short={f"requests.{GPU}": True}),
        Case("for pods that end by themselves", {"pods": "0"}, spec={"scopes": ["Terminating"]}),
        Case(
            "for pods such as ours",
            {"pods": "0"},
            short={"pods": True},
            spec={"scopes": ["NotTerminating"]},
        ),
        Case(
            "for a priority",
            {"pods": "0"},
            spec={"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass"}]}},
        ),
    ],
    ids=lambda case: case.name,
)
def test_what_pods_do_not_fit_in(case, mpijob):
    missing = shortages([quota_of(case)], mpijob)

    assert {shortage.resource: shortage.is_final for shortage in missing} == case.short


def test_a_quota_that_no_controller_has_looked_at_yet_counts(mpijob):
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "4"}}}

    (shortage,) = shortages([quota], mpijob)

    assert str(shortage) == ("resourcequota/q allows pods=4, 0 of it are used, and the job needs 5")


def test_the_most_workers_that_fit_leave_room_for_the_launcher(mpijob):
    def room(**hard):
        return num_workers_with_room([quota_of(Case("", hard))], mpijob)

    assert [room(pods=str(n)) for n in range(7)] == [0, 0, 1, 2, 3, 4, 4]
    assert room(cpu="6") == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"),
        ("500m", "0.5"),
        ("1500u", "0.0015"),
        ("2k", "2000"),
        ("1.5Ki", "1536"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("2E", str(2 * 10**18)),
    ],
)
def test_quantities_as_kubernetes_writes_them(text, number):
    assert quantity(text) == Decimal(number)
