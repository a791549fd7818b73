"""Memory that runs out, a full disk, Ctrl-C at once: nothing is lost, and people are told."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edl_horovod.errors import Interrupted, JobFailed, OutputError
from edl_horovod.job.directory import JobDir
from edl_horovod.launch.local_jobs import LocalJobs
from edl_horovod.ledger.proof import prove
from tests.frameworks import NEEDS_KERAS
from tests.integration.conftest import REPOSITORY, ZOO
from tests.records import write_records
from tests.waiting import wait_until

ROOM_BYTES = 256 << 20
NUM_RECORDS, EPOCHS = 100, 3


@pytest.fixture
def settings(tmp_path):
    data = write_records(tmp_path / "data", NUM_RECORDS)
    return [
        f"data={data}",
        "train.batch_size=24",
        f"train.epochs={EPOCHS}",
        "data_plan.lanes=6",
        f"job_dir={tmp_path}/job",
    ]


@pytest.fixture
def memory_group(tmp_path):
    """A control group for one process with little room for what it takes from then on."""
    groups = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    if "memory" in groups:
        parent = Path("/sys/fs/cgroup/memory") / groups["memory"].lstrip("/")
        limit = "memory.limit_in_bytes"
    else:
        parent, limit = Path("/sys/fs/cgroup") / groups[""].lstrip("/"), "memory.max"
    group = parent / f"edl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(ROOM_BYTES))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group for memory can be made here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text().split(), "an empty group")
    group.rmdir()


@pytest.mark.root
def test_a_worker_that_the_kernel_kills_for_memory_costs_no_record(
    start, settings, tmp_path, memory_group
):
    meal = tmp_path / "meal"
    job = start(
        "train",
        *settings,
        "model_def=hungry",
        f"params.meal={meal}",
        "launch.np=2",
        "elastic.min_np=1",
        "debug.ledger=true",
    )
    job.wait_for_ring(2)
    job.wait_for_step(2)
    (memory_group / "cgroup.procs").write_text(str(job.worker_pid(1)))
    meal.touch()
    job.succeed()
    assert not meal.exists()

    failed = [e.event for e in job.events("worker") if e.event.state == "failed"]
    assert [event.worker for event in failed] == ["localhost:1"]
    assert "SIGKILL: as the kernel counts, memory" in failed[0].message
    assert re.search(r"it had used up to \d+\.\d GiB when last seen", failed[0].message)
    assert "lower train" in job.printed
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    assert (proof.is_finished, proof.num_records) == (True, EPOCHS * NUM_RECORDS)


@pytest.mark.long
def test_a_worker_that_is_killed_at_the_same_step_in_each_life_ends_the_job(start, settings):
    job = start("train", *settings, "model_def=dying", "params.bad_id=70", "launch.np=1")
    assert job.end() == JobFailed.exit_code, job.describe()
    assert " 3 times " in job.printed
    lives = [e for e in job.events("step") if e.event.step == 1]
    # The first death may be seen before what was done until then.
    assert 3 <= len(lives) <= 4


@pytest.mark.root
def test_a_disk_that_is_full_at_the_end_leaves_a_checkpoint_to_go_on_from(
    start, settings, tmp_path
):
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=16k tmpfs {small}") != 0:
        pytest.skip("no file system can be mounted here")
    common = [*settings, "model_def=tiny", "launch.np=1"]
    try:
        job = start("train", *common, f"output={small}/model")
        assert job.end() == OutputError.exit_code, job.describe()
        assert "No space" in job.printed
        assert "Make room" in job.printed
        assert "resume=auto" in job.printed.rstrip().rpartition("\n")[2]
        assert list(small.iterdir()) == []
    finally:
        os.system(f"umount {small}")
    start("train", *common, "resume=auto", f"output={tmp_path}/model").succeed()


@pytest.fixture
def small(tmp_path):
    """A folder with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.system(f"mount -t tmpfs -o size=600k tmpfs {folder}") != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    os.system(f"umount {folder}")


def fill(folder):
    """Take all room that is left; returns the file that takes it."""
    with (folder / "full").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(512))
    return folder / "full"


PACED = (
    "model_def=paced.PacedSpec",
    "launch.np=2",
    "debug.ledger=true",
    "checkpoint.every_steps=2",
)


@pytest.mark.root
def test_a_disk_that_is_full_while_a_ledger_is_written_ends_no_job(start, settings, small):
    job = start("train", *settings, *PACED, f"job_dir={small}/job")
    job.wait_for_step(3)
    fill(small)
    job.succeed()
    assert "No space" in job.printed
    progress = LocalJobs().status(str(job.job_dir)).progress
    assert (progress.state, progress.step) == ("finished", 15)


@pytest.mark.further
@pytest.mark.root
def test_a_job_that_a_full_disk_ended_goes_on_and_its_ledger_is_a_proof(start, settings, small):
    words = [*settings, *PACED, f"job_dir={small}/job", f"output={small}/out"]
    job = start("train", *words)
    job.wait_for_step(5)
    full = fill(small)
    assert job.end() == OutputError.exit_code, job.describe()
    status = LocalJobs().status(str(job.job_dir))
    assert status.state == "failed"
    assert "No space" in status.message
    full.unlink()
    start("train", *words, "resume=auto").succeed()
    assert LocalJobs().status(str(job.job_dir)).state == "finished"
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    assert (proof.is_finished, proof.num_records) == (True, EPOCHS * NUM_RECORDS)


@pytest.mark.root
def test_a_stream_that_the_disk_has_no_room_for_is_told_and_leaves_nothing(
    start, settings, tmp_path
):
    small = tmp_path / "job"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {small}") != 0:
        pytest.skip("no file system can be mounted here")
    try:
        others = [text for text in settings if not text.startswith("data=")]
        job = start(
            "train", *others, "model_def=rows", "data=dataset:own_rows.large_stream", "launch.np=1"
        )
        assert job.end() == OutputError.exit_code, job.describe()
        assert re.search(r"records\.recordio cannot be written: No space left", job.printed)
        assert "Make room" in job.printed
        assert not (small / "records.partial").exists()
        assert list((small / "records").iterdir()) == []
    finally:
        os.system(f"umount {small}")


@pytest.mark.long
def test_ctrl_c_while_a_stream_is_read_leaves_none_of_it(start, settings, tmp_path):
    others = [text for text in settings if not text.startswith("data=")]
    job = start("train", *others, "model_def=rows", "data=dataset:own_rows.slow_stream")
    unfinished = tmp_path / "job" / "records.partial"
    job.wait_for(lambda _: any(unfinished.glob("*/*")), "the first records")
    job.process.send_signal(signal.SIGINT)
    assert job.end(30) == Interrupted.exit_code, job.describe()
    assert "read once" in job.printed
    assert not unfinished.exists()
    assert not any(path.is_dir() for path in (tmp_path / "job" / "records").iterdir())


@pytest.mark.long(after=1)
@pytest.mark.parametrize("tenths", range(1, 6))
@NEEDS_KERAS
def test_ctrl_c_within_the_first_half_second_leaves_a_line_and_nothing_else(
    settings, tmp_path, tenths
):
    """Counted from when Python has begun: before that nothing of ours is there to hear it."""
    began = tmp_path / "began"
    code = (
        f"open({str(began)!r}, 'w').close()\n"
        "import sys\n"
        "from edl_horovod.__main__ import main\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", code, "train", *settings, "model_def=tiny"]
    process = subprocess.Popen(
        [*command, f"model_zoo={ZOO}", f"output={tmp_path}/out", "launch.np=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    wait_until(began.exists, describe=lambda: str(process.poll()))
    time.sleep(tenths / 10)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == Interrupted.exit_code, printed
    assert "Traceback" not in printed
    assert printed.rstrip().splitlines()[-1].startswith(("error: ", "The ", "Nothing "))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
