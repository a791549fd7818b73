"""A worker's variables as one value, and nobody else who reads them."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

import edl_horovod
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.worker.environment import WorkerEnvironment
from tests.parallel.places import place_of

ROOT = Path(edl_horovod.__file__).parent
COORDINATED = {
    "EDL_COORDINATOR": "fd00::7:4000",
    "EDL_SECRET_FILE": "/job/secret",
    "EDL_HOST": "a",
    "EDL_SLOT": "2",
    "EDL_READY_FILE": "/ready/2",
}
RANKS = {"rank": 1, "size": 2, "local_rank": 0, "local_size": 1, "cross_rank": 1, "cross_size": 2}
DRIVER = {
    **{f"HOROVOD_{name.upper()}": str(number) for name, number in RANKS.items()},
    "HOROVOD_HOSTNAME": "b",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
}
HOST = {"worker": "b:0", "host": "b", "rendezvous_address": "10.0.0.1"}
PLACE = replace(place_of(1, 4000, "", generation=0), **HOST, **RANKS)


def test_a_coordinators_worker():
    assert WorkerEnvironment.of(COORDINATED) == WorkerEnvironment(
        identity=WorkerIdentity(host="a", slot=2, coordinator_host="fd00::7"),
        coordinator_port=4000,
        secret_file=Path("/job/secret"),
        ready_file=Path("/ready/2"),
    )


def test_a_rank_of_horovodrun():
    environment = WorkerEnvironment.of({**DRIVER, "HOROVOD_GLOO_TIMEOUT_SECONDS": "7"})
    assert environment == WorkerEnvironment(
        identity=WorkerIdentity(host="b", slot=0), driver_place=PLACE, driver_timeout_seconds=7.0
    )


def test_a_rank_of_mpirun():
    variables = {"EDL_MEMBERSHIP": "static", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    environment = WorkerEnvironment.of(variables)
    assert environment.is_static
    assert environment.identity == WorkerIdentity(host=socket.gethostname(), slot=3)


@pytest.mark.parametrize(
    ("variables", "membership", "has_launcher"),
    [
        (COORDINATED, "coordinator", True),
        (DRIVER, "horovodrun", False),
        ({**DRIVER, **COORDINATED}, "coordinator", True),
        ({"EDL_MEMBERSHIP": "static"}, "static", True),
        ({"EDL_SLOT": "1"}, "", False),
    ],
)
def test_who_deals_the_places(variables, membership, has_launcher):
    environment = WorkerEnvironment.of(variables)
    assert (environment.membership, environment.has_launcher) == (membership, has_launcher)


def test_a_slot_of_a_launcher_counts_more_than_a_local_rank():
    assert WorkerEnvironment.of({**DRIVER, "EDL_SLOT": "4"}).identity.slot == 4


def modules_with(pattern, *packages):
    files = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
    return {
        file.relative_to(ROOT).as_posix()
        for file in files
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }


def test_only_edges_of_the_ranks_half_see_the_environment():
    halves = ("ring", "tasks", "frameworks", "trained_model", "coordinator", "worker")
    assert modules_with(r"os\.(environ|getenv)", *halves) == {
        "frameworks/horovod.py",  # Horovod's library reads what it writes.
        "tasks/warm.py",  # Whether the user asks for a GPU.
        "tasks/zoo_copy.py",  # It hides the GPUs from its own process.
        # TensorFlow and Horovod read what it writes, and its launcher sends variables to a fork.
        "worker/__main__.py",
        "worker/shim.py",  # It hands its own variables over.
        "worker/stand_in.py",
    }


def test_our_variables_are_read_in_one_place_a_kind_of_process():
    reads = r"(environ|variables)(\.get\(|\[)f?\"(EDL|HOROVOD|OMPI)_\w*\"(,|\)|\](?! = ))"
    assert modules_with(reads, ".") == {
        "cluster/pod/launcher.py",
        "cluster/pod/pre_stop.py",
        "job/lifeline.py",
        "preparation/job.py",
        "worker/environment.py",
        "worker/shim.py",
    }
