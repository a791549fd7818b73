"""The batch script of launch=slurm and what is refused; Slurm's commands are scripts here."""

from types import SimpleNamespace

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig, LaunchConfig, SlurmConfig
from edl_horovod.displays.text import job_facts
from edl_horovod.errors import (
    ClusterError,
    ClusterForbidden,
    ClusterUnreachable,
    ConfigError,
    NoCluster,
    ObjectNotFound,
)
from edl_horovod.job import hosts
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, JobEvent
from edl_horovod.launch import slurm_allocation
from edl_horovod.launch.slurm import SlurmTarget
from edl_horovod.launch.target import find
from tests import programs


def job(tmp_path, *, np=4, **settings):
    (tmp_path / "zoo").mkdir(exist_ok=True)
    return JobConfig(
        task="train",
        data="/d",
        output=f"{tmp_path}/out",
        model_zoo=f"{tmp_path}/zoo",
        model_def="m",
        framework="keras",
        launch=LaunchConfig(kind="slurm", np=np),
        slurm=SlurmConfig(**settings),
    )


def options_of(config):
    """The script of a job, and the options in it."""
    script = SlurmTarget().plan(config).script
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]
    return script, dict(line.partition("=")[::2] for line in lines)


def status_of(name="7"):
    status = SlurmTarget().jobs({}).status(name)
    return status.state, status.is_at_rest


def source():
    """What a page shows of a job."""
    return SlurmTarget().jobs({}).source("7")


@pytest.fixture
def folder(tmp_path):
    """The directory of a job that has begun."""
    folder = tmp_path / "out.job"
    folder.mkdir()
    resolved.dump(job(tmp_path), folder / "config.yaml")
    return folder


def say(folder, state, message=""):
    with EventLog(folder / "events.jsonl", "launcher") as log:
        log.write(JobEvent(state=state, task="train", message=message))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a command of Slurm on the path, a script of the shell."""
    return programs.writer(tmp_path / "bin", monkeypatch, "/usr/bin", "/bin")


@pytest.fixture
def queue(program, tmp_path):
    """Have squeue show one job of ours in a state."""

    def show(state, *, comment=f"edl {tmp_path}/out.job", reason="None", started="N/A"):
        fields = [state, reason, "all", "n[1-2]", "1:00", "2026-01-01T00:00:00", started, comment]
        program("squeue", f"echo '7|{'|'.join(fields)}'")

    return show


def test_the_script_asks_slurm_for_what_the_ranks_need(tmp_path):
    config = job(tmp_path, slots_per_node=2, cpus_per_rank=3, gpus_per_rank=1, memory="16G")

    _, options = options_of(config)

    assert {
        "--nodes": "2",
        "--ntasks-per-node": "1",
        "--cpus-per-task": "6",
        "--gpus-per-node": "2",
        "--mem": "16G",
        "--comment": f"'edl {tmp_path}/out.job'",
    }.items() <= options.items()
    assert "--time" not in options


def test_the_script_is_warned_of_its_time_limit_and_survives_lost_nodes(tmp_path):
    _, options = options_of(job(tmp_path, leave_seconds=90))
    assert options["--signal"] == "B:USR1@90"
    assert {"--no-kill", "--requeue"} <= options.keys()
    assert "--no-requeue" in options_of(job(tmp_path, requeue=False))[1]


def test_the_users_options_and_lines_are_in_the_script(tmp_path):
    script, options = options_of(
        job(tmp_path, min_nodes=2, options=["--constraint=a b"], setup=["module load cuda"])
    )

    assert options["--nodes"] == "2-4"
    assert "#SBATCH '--constraint=a b'\nmodule load cuda\nexec " in script


def test_the_script_holds_the_settings_of_the_job(tmp_path):
    plan = SlurmTarget().plan(job(tmp_path))

    settings = plan.script.partition("<<'END_OF_SETTINGS'\n")[2].removesuffix("END_OF_SETTINGS\n")

    (tmp_path / "config.yaml").write_text(settings)
    assert resolved.load(tmp_path / "config.yaml") == plan.config


@pytest.mark.parametrize(
    "settings", [{"slots_per_node": 3}, {"min_nodes": 5}, {"min_nodes": 3, "slots_per_node": 2}]
)
def test_nodes_that_do_not_fit_the_ranks_are_refused(tmp_path, settings):
    config = job(tmp_path, **settings)
    with pytest.raises(ConfigError):
        SlurmTarget().plan(config)


@pytest.mark.parametrize(
    "settings",
    [
        *({"partition": "a b"}, {"time": "1\n2"}, {"leave_seconds": 0}),
        *({"options": [text]} for text in ("constraint=a", "--constraint=a\nrm -r /")),
        {"setup": ["one\ntwo"]},
    ],
)
def test_settings_that_would_break_the_script_are_refused(settings):
    with pytest.raises(ConfigError):
        SlurmConfig(**settings)


def test_a_dry_run_prints_the_script_and_makes_no_yaml(tmp_path):
    target = find("slurm")
    plan = target.plan(job(tmp_path))

    assert target.describe(plan) == plan.script
    with pytest.raises(ConfigError):
        target.describe(plan, whole=True)


def test_a_submission_gives_the_number_in_slurm(tmp_path, program):
    program("sbatch", f"cat > {tmp_path}/script; echo '12;cluster'")
    target = SlurmTarget()
    plan = target.plan(job(tmp_path))

    submitted = target.launch(plan)

    assert (submitted.name, submitted.job_dir) == ("12", f"{tmp_path}/out.job")
    assert (tmp_path / "script").read_text() == plan.script


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Invalid job id specified", ObjectNotFound),
        ("Could not establish a configuration source", NoCluster),
        ("Unable to contact slurm controller (connect failure)", ClusterUnreachable),
        ("Access/permission denied", ClusterForbidden),
        ("Requested node configuration is not available", ClusterError),
    ],
)
def test_what_slurm_refuses_has_an_exit_code_of_its_own(tmp_path, program, text, error):
    program("sbatch", f"echo 'sbatch: error: {text}' >&2; exit 1")
    target = SlurmTarget()

    with pytest.raises(error) as caught:
        target.launch(target.plan(job(tmp_path)))

    assert type(caught.value) is error


def test_without_slurm_there_is_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster):
        SlurmTarget().jobs({})


def test_a_job_that_waits_says_what_slurm_says(queue):
    queue("PENDING", reason="Resources")

    assert status_of() == ("waiting", False)
    assert "Resources" in SlurmTarget().jobs({}).status("7").message
    snapshot = source().snapshot()
    assert (snapshot.problem, snapshot.http_status) == ("", 200)
    facts = job_facts(snapshot.state, snapshot.details, now=0.0)
    assert facts["state"] == "waiting: Slurm says Resources"


def test_the_page_of_a_job_that_was_queued_again_says_that_it_waits(queue, folder):
    queue("PENDING", reason="BeginTime")
    say(folder, "suspended", "the time is over")

    details = source().snapshot().details

    assert details.state == "waiting"
    assert "BeginTime" in details.message


def test_the_page_asks_slurm_for_nothing_while_a_job_is_at_work(queue, program, folder):
    queue("RUNNING")
    say(folder, "finished")
    page = source()
    program("squeue", "exit 1")

    assert page.snapshot().state.state == "finished"


def test_the_page_of_a_job_that_waits_says_that_slurm_does_not_answer(queue, program):
    queue("PENDING")
    page = source()
    program("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")

    snapshot = page.snapshot()

    assert "slurm controller" in snapshot.problem
    assert snapshot.http_status == 503


def test_a_statement_names_its_job_by_the_directory_before_that_exists(queue, tmp_path):
    queue("PENDING")
    target = SlurmTarget()

    name, place = target.name_of(target.plan(job(tmp_path)))

    assert name == f"{tmp_path}/out.job"
    assert target.jobs(place).status(name).state == "waiting"


def test_a_directory_that_slurm_has_forgotten_has_the_state_of_its_events(queue, folder):
    queue("COMPLETED", comment="edl /another/job")
    assert status_of(str(folder)) == ("failed", True)


def test_a_job_that_ended_without_an_event_has_failed(queue):
    queue("NODE_FAIL")
    assert status_of() == ("failed", True)


@pytest.mark.parametrize(
    ("ended", "started", "state"),
    [
        ("FAILED", "2020-01-01T00:00:00", "suspended"),
        ("FAILED", "2100-01-01T00:00:00", "failed"),
        # Slurm gives a job that waited the time of its end as that of its start.
        ("CANCELLED", "2100-01-01T00:00:00", "suspended"),
    ],
)
def test_a_job_that_was_queued_again_and_could_not_start_has_failed(
    queue, folder, ended, started, state
):
    queue(ended, started=started)
    say(folder, "suspended")
    assert status_of()[0] == state


def test_a_job_of_others_is_none_of_ours(queue):
    queue("RUNNING", comment="")
    jobs = SlurmTarget().jobs({})
    assert jobs.list() == []
    with pytest.raises(ObjectNotFound):
        jobs.status("7")


def test_a_stop_is_a_signal_to_the_launcher(queue, program, tmp_path):
    queue("RUNNING")
    program("scancel", f'echo "$@" > {tmp_path}/asked')
    SlurmTarget().jobs({}).stop("7")
    assert (tmp_path / "asked").read_text().split() == ["--batch", "--signal=TERM", "7"]


@pytest.mark.usefixtures("folder")
def test_a_job_that_has_ended_is_not_changed(queue):
    queue("COMPLETED")
    jobs = SlurmTarget().jobs({})
    with pytest.raises(ConfigError, match="scaled"):
        jobs.scale("7", 1)
    with pytest.raises(ConfigError, match="stopped"):
        jobs.stop("7")


def test_the_directory_of_a_job_names_it_too(folder):
    names = [str(folder), "12", "mnist-1", str(folder.parent)]
    assert [SlurmTarget().names(name) for name in names] == [True, True, False, False]


def test_the_batch_script_plans_a_ring_over_its_nodes(tmp_path):
    config = SlurmTarget().plan(job(tmp_path, slots_per_node=2)).config

    plan = slurm_allocation.plan_in_allocation(config, ["n1", "n2"], "n2")

    assert list(plan.hosts.items()) == [("n2", 2), ("n1", 2)]
    assert plan.worker is None
    assert plan.coordinator.argv[-2:] == ("--address", "n2")


def test_an_interface_that_is_not_there_is_refused(tmp_path):
    config = SlurmTarget().plan(job(tmp_path, interface="none0")).config
    with pytest.raises(ConfigError, match="interface"):
        slurm_allocation.plan_in_allocation(config, ["n1"], "n1")


class EndedAtOnce:
    """A step of Slurm that fails whenever it is started."""

    exit_code = 1
    num_started = 0

    def __init__(self, _command, _path):
        EndedAtOnce.num_started += 1

    def wait(self, _seconds):
        pass

    def close(self):
        pass


def test_the_step_of_a_broken_node_is_started_again_for_weeks(tmp_path, monkeypatch):
    config = SlurmTarget().plan(job(tmp_path)).config
    job_dir = JobDir.of(config)
    job_dir.path.mkdir(parents=True)
    hosts.write(job_dir.hosts, {"n1": 1})
    now = [0.0]

    def sleep(seconds):
        now[0] += max(seconds, 50.0)
        if EndedAtOnce.num_started > 1100:
            job_dir.result.write_text("{}")

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    ring = SimpleNamespace(address="n1", port=1)
    for name, value in {
        "Child": EndedAtOnce,
        "time": clock,
        "nodes_of": lambda _number: ["n1"],
        "saved": SimpleNamespace(load=lambda _path: ring),
        "end_requested": lambda: lambda: False,
    }.items():
        monkeypatch.setattr(slurm_allocation, name, value)
    slurm_allocation.keep_steps(config)
    assert EndedAtOnce.num_started > 1100
