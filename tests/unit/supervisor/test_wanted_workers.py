"""How many workers a launcher keeps for what the hosts file wants."""

import pytest

from edl_horovod.job import hosts
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor import run as job
from tests.jobs import config_of


class Slots:
    """Notes how many are wanted, and starts nothing."""

    num_wanted = 0

    def keep(self) -> None:
        pass


@pytest.fixture
def keep(tmp_path):
    """Keep workers for what the hosts file of a job, with more settings, wants; returns them."""
    slots, file = Slots(), hosts.HostsFile(tmp_path / "hosts")

    def keep_them(*settings):
        words = ["data=/d", "model_def=m", f"output={tmp_path}/out", f"job_dir={tmp_path}"]
        plan = LocalTarget().plan(config_of("train", [*words, *settings]))
        job._keep_slots(plan, file, slots)
        return slots.num_wanted

    return keep_them


@pytest.fixture
def wanted(tmp_path, keep):
    """How many workers are kept for a number of slots."""

    def ask(num_slots, *settings):
        hosts.write(tmp_path / "hosts", {"localhost": num_slots})
        return keep(*settings)

    return ask


def test_slots_are_workers_and_spares(wanted, caplog):
    assert wanted(3, "elastic.max_np=4", "elastic.spares=1") == 4
    assert caplog.text == ""


def test_a_typing_error_starts_no_more_than_the_ring_and_its_spares(wanted, caplog):
    assert wanted(5000, "elastic.max_np=4", "elastic.spares=1") == 5
    for text in ("5000 slots of localhost", "4 ranks", "5 workers"):
        assert text in caplog.text


def test_lanes_bound_a_job_without_a_largest_ring(wanted):
    assert wanted(5000, "data_plan.lanes=16", "train.batch_size=64") == 16


def test_what_is_wrong_is_said_once(wanted, keep, caplog):
    wanted(5000)
    for _ in range(2):
        keep()
    assert caplog.text.count("wants 5000") == 1


def test_a_file_that_cannot_be_read_changes_nothing(wanted, keep, tmp_path):
    wanted(2)
    (tmp_path / "hosts").write_text("localhost\n")
    assert keep() == 2
