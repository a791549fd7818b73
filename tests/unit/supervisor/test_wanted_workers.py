"""How many workers a launcher keeps for what the hosts file wants."""

from pathlib import Path

import pytest

from edl_horovod.config.compose import compose
from edl_horovod.job import hosts
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor import run as job


class Slots:
    """Notes how many are wanted, and starts nothing."""

    num_wanted = 0

    def keep(self) -> None:
        pass


@pytest.fixture
def wanted(tmp_path: Path):
    """How many workers are kept for a number of slots, of a job with more settings."""

    def ask(num_slots: int, *settings: str) -> int:
        words = ["data=/d", "model_def=m", f"output={tmp_path}/out", f"job_dir={tmp_path}"]
        plan = LocalTarget().plan(compose("train", [*words, *settings]))
        hosts.write(tmp_path / "hosts", {"localhost": num_slots})
        slots = Slots()
        job._keep_slots(plan, hosts.HostsFile(tmp_path / "hosts"), slots)
        return slots.num_wanted

    return ask


def test_slots_are_workers_and_spares(wanted, caplog):
    assert wanted(3, "elastic.max_np=4", "elastic.spares=1") == 4
    assert caplog.text == ""


def test_a_typing_error_starts_no_more_than_the_ring_and_its_spares(wanted, caplog):
    assert wanted(5000, "elastic.max_np=4", "elastic.spares=1") == 5
    assert "wants 5000 slots of localhost, but the ring can have 4 ranks" in caplog.text
    assert "5 workers are kept" in caplog.text


def test_lanes_bound_a_job_without_a_largest_ring(wanted):
    assert wanted(5000, "data_plan.lanes=16", "train.batch_size=64") == 16


def test_what_is_wrong_is_said_once(tmp_path, caplog):
    words = ["data=/d", "model_def=m", f"output={tmp_path}/out", f"job_dir={tmp_path}"]
    plan = LocalTarget().plan(compose("train", words))
    hosts.write(tmp_path / "hosts", {"localhost": 5000})
    file = hosts.HostsFile(tmp_path / "hosts")
    for _ in range(3):
        job._keep_slots(plan, file, Slots())
    assert caplog.text.count("wants 5000") == 1


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path):
    words = ["data=/d", "model_def=m", f"output={tmp_path}/out", f"job_dir={tmp_path}"]
    plan = LocalTarget().plan(compose("train", words))
    hosts.write(tmp_path / "hosts", {"localhost": 2})
    file, slots = hosts.HostsFile(tmp_path / "hosts"), Slots()
    job._keep_slots(plan, file, slots)
    (tmp_path / "hosts").write_text("localhost\n")
    job._keep_slots(plan, file, slots)
    assert slots.num_wanted == 2
