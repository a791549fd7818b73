from dataclasses import dataclass

import pytest

from edl_horovod.cluster.pod import pre_stop

OWN, OTHER = "10.1.2.3", "10.1.2.30"
WORKER = ["/opt/bin/python", "-m", "edl_horovod.worker", "--config", "/data/job/config.yaml"]
HOOK = ["python", "-m", "edl_horovod.cluster.pod.pre_stop", "--config", "/edl/config.yaml"]


@dataclass(frozen=True)
class Left:
    name: str
    hosts: dict
    min_np: int
    can_leave: bool


@pytest.mark.parametrize(
    "case",
    [
        Left("discovery does not know yet", {OWN: 1, OTHER: 1}, 2, True),
        Left("enough are left", {OTHER: 2}, 2, True),
        Left("too few are left", {OTHER: 1}, 2, False),
        Left("nobody is left", {}, 1, False),
    ],
    ids=lambda case: case.name,
)
def test_ranks_can_leave_where_a_ring_forms_without_them(case):
    assert pre_stop.can_leave(case.hosts, OWN, min_np=case.min_np) is case.can_leave


@dataclass(frozen=True)
class Process:
    name: str
    words: list
    variables: dict
    is_rank: bool


@pytest.mark.parametrize(
    "case",
    [
        Process("a rank", WORKER, {"A": "1", "HOROVOD_HOSTNAME": OWN}, True),
        Process("one of another pod", WORKER, {"HOROVOD_HOSTNAME": OTHER}, False),
        Process("not started by horovodrun", WORKER, {}, False),
        Process("the hook", HOOK, {"HOROVOD_HOSTNAME": OWN}, False),
        Process(
            "the shell of ssh",
            ["bash", "-c", f"cd /home/edl && {' '.join(WORKER)}"],
            {"HOROVOD_HOSTNAME": OWN},
            False,
        ),
        Process("one that has ended", [], {}, False),
    ],
    ids=lambda case: case.name,
)
def test_a_rank_is_what_horovodrun_started_on_this_host(tmp_path, case):
    for name in ("7", "self"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "cmdline", case.words)
        write(tmp_path / name / "environ", [f"{k}={v}" for k, v in case.variables.items()])
    (tmp_path / "8").mkdir()  # It has ended meanwhile.

    assert pre_stop.ranks(OWN, processes=tmp_path) == [7] * case.is_rank


def write(path, words):
    path.write_bytes(b"".join(word.encode() + b"\0" for word in words))
