"""The life of a job as a user drives it: the verbs, through the real client."""

import contextlib
import io
import json
import signal
import threading

import pytest

from edl_horovod import Client
from edl_horovod.cli.main import main
from edl_horovod.cluster.pod_log import PodLog
from edl_horovod.errors import ConfigError, JobFailed, TimedOut
from edl_horovod.job.events import line_of
from tests.job_events import recorded
from tests.kube.lab import LAUNCHER, WORKERS, Lab, background
from tests.waiting import wait_until

MEMBERS = ("mnist-worker-1.u1:0", "mnist-worker-0.u0:0")


def edl(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_list_shows_our_jobs_and_no_others(lab, capsys):
    lab.submit()
    lab.submit("kubernetes.suspend=true", name="later")
    foreign = lab.cluster.get("MPIJob", "later")
    foreign["metadata"] = {"name": "theirs"}
    lab.cluster.create(foreign)

    code, printed, _ = edl(capsys, "list")

    assert code == 0
    lines = [line.split()[1:4] for line in printed.splitlines()[1:]]
    assert lines == [["later", "suspended", "0/2"], ["mnist", "waiting", "0/2"]]
    assert [job["job"] for job in json.loads(edl(capsys, "list", "-A", "-o", "json")[1])] == [
        "later",
        "mnist",
    ]


def test_list_calls_a_job_running_that_trains_before_all_its_pods_are_there(lab, capsys):
    lab.submit()
    lab.submit(name="other")
    lab.add_pods()
    for name in (LAUNCHER, "mnist-worker-0"):
        lab.set_pod(name, "Running", is_ready=True)

    lines = [line.split()[1:4] for line in edl(capsys, "list")[1].splitlines()[1:]]

    assert lines == [["mnist", "running", "1/2"], ["other", "waiting", "0/2"]]


def test_status_of_a_job_without_pods_says_what_is_missing(lab, capsys):
    lab.submit()

    printed = edl(capsys, "status", "mnist")[1]

    assert "POD" not in printed
    assert "waits for: MPIJob/mnist" in printed
    assert "not seen" in printed


def test_status_shows_the_training_from_the_launchers_log(lab, capsys):
    lab.run()
    events = [
        recorded("job", 1.0, "launcher", task="train"),
        recorded("generation", 2.0, generation=3, size=2, members=MEMBERS, is_formed=True),
        recorded("step", 3.0, step=50, total_steps=200, size=2),
    ]
    lab.write_log(LAUNCHER, "a warning\n" + "".join(map(line_of, events)))
    lab.write_log("mnist-worker-1", "rank 0 is here\n")

    code, printed, _ = edl(capsys, "status", "mnist")

    assert code == 0
    assert "state      running" in printed
    for text in ("2 of 2 pods", "50 of 200", "2 ranks, generation 3"):
        assert text in printed
    status = json.loads(edl(capsys, "status", "mnist", "-o", "json")[1])
    assert (status["state"], status["step"], status["num_warm"]) == ("running", 50, 2)
    assert edl(capsys, "logs", "mnist", "--rank", "0")[1] == "rank 0 is here\n"
    assert edl(capsys, "logs", "mnist", "--worker", "mnist-worker-1")[1] == "rank 0 is here\n"
    lab.say("MPIJob/mnist", "Created", "MPIJob is created", time="2101-01-01T00:00:00Z")
    events = json.loads(edl(capsys, "events", "mnist", "-o", "json")[1])
    assert [(event["origin"], event["kind"]) for event in events] == [
        ("edl", "job"),
        ("edl", "generation"),
        ("edl", "step"),
        ("kubernetes", "Warning"),
    ]
    assert events[2]["fields"]["step"] == 50
    with Client() as client:
        assert [(line.source, line.text) for line in client.logs("mnist", rank=0)] == [
            ("mnist-worker-1", "rank 0 is here")
        ]
    code, _, said = edl(capsys, "logs", "mnist", "--rank", "2")
    assert (code, "no rank 2" in said) == (2, True)


def write_pod_log(lab: Lab, *events) -> None:
    """What the launcher's pod shows of the events of a job."""
    stream = io.StringIO()
    PodLog(stream)(events)
    lab.write_log(LAUNCHER, stream.getvalue())


def test_status_knows_a_job_of_many_hours(lab, capsys):
    lab.run()
    write_pod_log(
        lab,
        recorded("job", 1000.0, "launcher", task="train"),
        recorded("reset", 1001.0, generation=1, old_size=0, new_size=1),
        recorded("reset", 1002.0, generation=3, old_size=1, new_size=2),
        recorded("generation", 1002.0, generation=3, members=MEMBERS, is_formed=True),
        recorded("evaluation", 1003.0, metrics={"accuracy": 0.75}),
        *(recorded("step", 1000.0 + 5 * n, step=n, size=2) for n in range(1, 2500)),
    )
    lab.write_log("mnist-worker-1", "rank 0 is here\n")

    printed = edl(capsys, "status", "mnist")[1]

    assert "accuracy 0.75" in printed
    assert "generation 3, 1 reset" in printed
    assert edl(capsys, "logs", "mnist", "--rank", "0")[1] == "rank 0 is here\n"
    events = json.loads(edl(capsys, "events", "mnist", "-o", "json")[1])
    assert {event["kind"] for event in events} == {"step"}


def test_status_knows_the_task_of_a_job_whose_log_began_before_its_last_lines(lab, capsys):
    lab.run()
    lab.write_log(LAUNCHER, line_of(recorded("step", 3.0, step=50, total_steps=200, size=2)))

    assert "50 of 200" in edl(capsys, "status", "mnist")[1]
    with Client() as client:
        assert client.source("mnist").snapshot().state.task == "train"


def test_report_and_table_of_events_come_from_the_launchers_log(lab, capsys, tmp_path):
    lab.run()
    write_pod_log(
        lab,
        recorded("job", 1.0, "launcher", task="train"),
        recorded("account", 100.0, "a:0", doing="input", seconds={"computing": 9.0}),
        recorded("account", 170.0, "b:0", doing="input", seconds={"building": 3.0}),
    )
    lab.say("MPIJob/mnist", "Created", "MPIJob is created", time="2101-01-01T00:00:00Z")

    page, table = tmp_path / "report.html", tmp_path / "events.csv"
    code, printed, said = edl(capsys, "report", "mnist", "--html", str(page))
    assert code == 0, said
    assert "75.0% of 12.0" in printed
    assert "all ranks" in page.read_text()
    assert edl(capsys, "events", "mnist", "--to", str(table))[0] == 0
    kinds = [row.split(",")[2] for row in table.read_text().splitlines()[1:]]
    assert kinds == ["job", "account", "account"], "what Kubernetes says is not the job's own"


def test_status_shows_the_pods_of_a_job_whose_log_cannot_be_read(lab, capsys):
    lab.run()  # Nothing is there to be read.

    code, printed, said = edl(capsys, "status", "mnist")

    assert code == 0
    assert "2 of 2 pods" in printed
    assert f"pods/log {LAUNCHER}" in said


def test_status_says_why_a_job_waits(lab, capsys):
    lab.submit("launch.np=4")
    lab.add_pods(workers=3)
    reason = {"reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu."}
    scheduled = {"type": "PodScheduled", "status": "False", **reason}
    lab.set_pod("mnist-worker-0", "Pending", conditions=[scheduled])
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {"name": "main", "restartCount": 0, "state": {"waiting": waiting}}
    lab.set_pod("mnist-worker-1", "Pending", containerStatuses=[status])
    crash = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    status = {"name": "main", "restartCount": 4, "state": {"waiting": crash}}
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    lab.set_pod("mnist-worker-2", "Running", containerStatuses=[status])
    for year in (2001, 2101):
        message, time = f"pods is forbidden: exceeded quota: team-{year}", f"{year}-01-01T00:00:00Z"
        lab.say("MPIJob/mnist", "FailedCreate", message, time=time)

    code, printed, _ = edl(capsys, "status", "mnist")

    assert code == 0
    assert "state      waiting" in printed
    cpu = "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    image = "ImagePullBackOff: Back-off pulling image"
    quota = "MPIJob/mnist: FailedCreate: pods is forbidden: exceeded quota: team-2101."
    for text in (cpu, image, quota, "CrashLoopBackOff: back-off 10s; ", "signal 9 (OOMKilled)"):
        assert text in printed
    assert "team-2001" not in printed, "that was an earlier job of the name"
    _, *events = edl(capsys, "events", "mnist")[1].splitlines()
    assert [line.split()[:4] for line in events] == [
        ["2101-01-01T00:00:00Z", "kubernetes", "Warning", "MPIJob/mnist"]
    ]


def test_scale_changes_the_number_of_worker_pods_within_its_bounds(lab, capsys):
    lab.run()

    dry_run = edl(capsys, "scale", "mnist", "--np", "4", "--dry-run")
    assert dry_run == (0, "job mnist: 2 -> 4 ranks (dry run)\n", "")
    assert replicas(lab) == 2
    assert edl(capsys, "scale", "mnist", "--np", "4")[:2] == (0, "job mnist: 2 -> 4 ranks\n")
    assert replicas(lab) == 4
    code, _, said = edl(capsys, "scale", "mnist", "--np", "5")
    assert (code, "min_np=1 and 4 " in said) == (2, True)
    assert replicas(lab) == 4


def test_scale_keeps_what_somebody_else_changed_meanwhile(lab):
    lab.run()
    barrier = threading.Barrier(2)

    def suspend_and_resume() -> None:
        with Client() as client:
            barrier.wait()
            for _ in range(5):
                client.stop("mnist", wait=False)
                client.resume("mnist")

    with background(suspend_and_resume), Client() as client:
        barrier.wait()
        for ranks in (3, 4, 3, 4):
            client.scale("mnist", ranks)

    spec = lab.cluster.get("MPIJob", "mnist")["spec"]
    assert (replicas(lab), spec["runPolicy"]["suspend"]) == (4, False)


def test_stop_and_resume_suspend_the_job(lab, capsys):
    lab.submit()

    code, printed, _ = edl(capsys, "stop", "mnist")

    assert (code, printed) == (0, "job mnist is stopped; it goes on by: edl resume mnist\n")
    assert edl(capsys, "list")[1].splitlines()[1].split()[2] == "suspended"
    assert edl(capsys, "resume", "mnist")[:2] == (0, "job mnist goes on\n")
    assert lab.cluster.get("MPIJob", "mnist")["spec"]["runPolicy"]["suspend"] is False


def test_stop_waits_for_the_pods_to_end(lab):
    lab.run()
    said = io.StringIO()
    waits = "2 of 2 worker pods warm"

    def end_pods() -> None:
        wait_until(lambda: waits in said.getvalue())
        for name in (LAUNCHER, *WORKERS):
            lab.cluster.delete("Pod", name, grace_seconds=0)

    with background(end_pods), contextlib.redirect_stderr(said):
        code = main(["stop", "mnist"])

    assert code == 0
    assert waits in said.getvalue()


def test_a_job_without_checkpoints_is_stopped_only_when_that_is_said(lab, capsys):
    lab.submit("checkpoint.every_seconds=0")

    code, _, said = edl(capsys, "stop", "mnist")

    assert (code, "Write -y" in said) == (2, True)
    assert lab.cluster.get("MPIJob", "mnist")["spec"]["runPolicy"]["suspend"] is False
    with Client() as client, pytest.raises(ConfigError, match="lose_steps"):
        client.stop("mnist")
    code, printed, _ = edl(capsys, "stop", "mnist", "-y", "--no-wait")
    assert (code, printed) == (0, "job mnist is asked to stop; it goes on by: edl resume mnist\n")
    assert lab.cluster.get("MPIJob", "mnist")["spec"]["runPolicy"]["suspend"] is True


def test_what_has_ended_is_not_changed(lab, capsys):
    lab.submit()
    lab.set_condition("Succeeded")

    for words in (["scale", "mnist", "--np", "3"], ["stop", "mnist"], ["resume", "mnist"]):
        code, _, said = edl(capsys, *words)
        assert (code, "mnist has finished" in said) == (2, True)


def test_delete_asks_and_takes_everything_with_it(lab, capsys):
    lab.submit()

    code, _, said = edl(capsys, "delete", "mnist")
    assert (code, "Write -y" in said) == (2, True)
    assert edl(capsys, "delete", "mnist", "--dry-run")[:2] == (0, "mpijob/mnist would be removed\n")
    lab.cluster.get("MPIJob", "mnist")

    assert edl(capsys, "delete", "mnist", "-y")[0] == 0

    assert edl(capsys, "wait", "mnist", "--for", "deleted", "--timeout", "10s")[0] == 0


def test_wait_ends_when_the_job_is_so_far(lab, capsys):
    lab.run()
    assert edl(capsys, "wait", "mnist", "--for", "running", "--timeout", "5s")[0] == 0

    later = threading.Timer(1.0, lab.set_condition, ["Succeeded"])
    later.start()
    assert edl(capsys, "wait", "mnist", "--timeout", "20s")[0] == 0
    later.join()


def test_wait_has_an_exit_code_for_each_end(lab, capsys):
    lab.submit()

    code, _, said = edl(capsys, "wait", "mnist", "--timeout", "1s", "-q")
    assert (code, "0 of 2 worker " in said) == (TimedOut.exit_code, True)

    lab.set_condition("Failed", "BackoffLimitExceeded")
    code, _, said = edl(capsys, "wait", "mnist", "--timeout", "5s", "-q")
    assert (code, "BackoffLimitExceeded" in said) == (JobFailed.exit_code, True)
    assert edl(capsys, "wait", "mnist", "--for", "ended", "--timeout", "5s", "-q")[0] == 0
    assert edl(capsys, "wait", "mnist", "--timeout", "soon")[0] == 2


def num_followed(lab: Lab, name: str) -> int:
    return sum(seen.path.endswith(f"/{name}/log") for seen in lab.server.seen)


def test_followed_logs_take_in_pods_that_come_later_and_end_with_the_job(lab, capsys):
    lab.submit()
    lab.add_pods(workers=1)
    pods = (LAUNCHER, "mnist-worker-0")
    for name in pods:
        lab.write_log(name, f"this is {name}\n")

    def go_on() -> None:
        for name in pods:
            lab.set_pod(name, "Running", is_ready=True)
            wait_until(lambda name=name: num_followed(lab, name))
        lab.set_condition("Succeeded")
        for name in pods:
            lab.set_pod(name, "Succeeded")

    with background(go_on):
        code, printed, _ = edl(capsys, "logs", "mnist", "-f")

    assert code == 0
    assert all(f"[{name}] this is {name}" in printed for name in pods)


def test_the_log_of_a_container_that_is_started_again_is_followed(lab, capsys):
    lab.submit()
    lab.add_pods()
    name = "mnist-worker-0"
    lab.write_log(name, "its first life\n")
    lab.set_pod(name, "Running", is_ready=True)

    def start_again() -> None:
        wait_until(lambda: num_followed(lab, name) == 1)
        running = {"name": "main", "restartCount": 1, "state": {"running": {}}}
        lab.set_pod(name, "Running", is_ready=True, containerStatuses=[running])
        with contextlib.suppress(AssertionError):  # The test itself says so.
            wait_until(lambda: num_followed(lab, name) == 2)
        lab.set_condition("Succeeded")
        lab.set_pod(name, "Succeeded")

    with background(start_again):
        code, _, _ = edl(capsys, "logs", "mnist", "-f", "--worker", name)

    assert (code, num_followed(lab, name)) == (0, 2)


def test_logs_say_why_there_are_none_yet(lab, capsys):
    lab.submit()
    lab.add_pods()
    status = {"name": "main", "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}}
    lab.set_pod("mnist-worker-0", "Pending", containerStatuses=[status])

    code, printed, said = edl(capsys, "logs", "mnist")

    assert (code, printed) == (0, "")
    assert "worker-0: ErrImagePull" in said


@pytest.mark.parametrize("words", [["logs", "mnist", "-f"], ["wait", "mnist", "-n", "default"]])
def test_who_stops_looking_is_told_how_to_come_back(lab, capsys, words):
    lab.submit()
    threading.Timer(1.5, signal.raise_signal, [signal.SIGINT]).start()

    code, _, said = edl(capsys, *words)

    assert code == 130
    assert said.endswith(f"the job itself is not. To come back: edl {' '.join(words)}\n")


def test_a_job_that_is_not_there_is_named(lab, capsys):
    flags = {"scale": ["--np", "2"], "delete": ["-y"], "wait": ["--timeout", "0"]}
    for verb in ("status", "logs", "events", "scale", "stop", "resume", "delete", "wait"):
        code, _, said = edl(capsys, verb, "x", *flags.get(verb, []))
        assert (code, " x " in said) == (15, True), verb


def test_forbidden_verbs_are_named(lab, stranger, capsys):
    code, _, said = edl(capsys, "list")

    assert (code, "list mpijobs.kubeflow" in said) == (14, True)


def replicas(lab: Lab) -> int:
    return lab.cluster.get("MPIJob", "mnist")["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
