"""`edl dashboard` of a job in a cluster: the real process, the real client, over HTTP."""

import json
import re
import signal
import time

import pytest

from edl_horovod.cli.main import main
from edl_horovod.job.events import line_of
from tests.dashboard import dashboard, new_job
from tests.job_events import recorded
from tests.kube.lab import LAUNCHER, Lab
from tests.waiting import wait_until

HOSTILE = "<script>alert(1)</script>"


def write_log(lab: Lab, *, steps: int) -> None:
    """What the launcher pod shows: other lines between the events, of which one is cut."""
    events = [
        recorded("job", 1.0, "launcher", task="train"),
        recorded("reset", 2.0, new_size=2),
        recorded("worker", 2.5, state="hung", message=HOSTILE),
        *(
            recorded("step", 3.0 + step, step=step, total_steps=200, loss=1 / step, size=2)
            for step in range(1, steps + 1)
        ),
    ]
    lines = ['"kind": "step", "step": 9}', "a warning", *map(line_of, events), '{"time": 9, "']
    lab.write_log(LAUNCHER, "\n".join(lines) + "\n")


@pytest.mark.long
def test_a_page_shows_the_training_and_the_pods(lab, tmp_path, capsys):
    lab.run()
    write_log(lab, steps=50)

    with dashboard("mnist", "-n", "default") as served:
        code, page, _ = served.get()
        status, text, _ = served.get("status.json")
        write_log(lab, steps=60)
        served.wait_for(200, "60 of 200")

    assert (code, status) == (200, 200)
    assert "50 of 200" in page
    assert ">loss</dt><dd>0.02<" in page
    assert "2 of 2 pods" in page
    assert re.search(">mnist-worker-1<.*>warm<", page)
    assert "over steps" in page
    assert HOSTILE not in page
    assert "&lt;script" in page
    write_log(lab, steps=50)
    assert main(["status", "mnist", "-o", "json"]) == 0
    assert json.loads(text) == json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_logs_of_pods_and_settings_have_pages(lab, tmp_path):
    lab.run()
    write_log(lab, steps=50)

    with dashboard("mnist") as served:
        page = served.wait_for(200, "50 of 200")
        log = served.get(f"logs/{LAUNCHER}")
        settings = served.get("settings")
        missing = served.get("logs/another-pod")[0]

    assert f'href="logs/{LAUNCHER}"' in page
    assert (log[0], "a warning" in log[1], HOSTILE in log[1]) == (200, True, False)
    assert (settings[0], ">train.batch_size<" in settings[1]) == (200, True)
    assert missing == 404


@pytest.mark.long
def test_all_jobs_are_those_below_the_folder_and_those_of_the_cluster(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_job(tmp_path)
    lab.run()
    write_log(lab, steps=50)

    with dashboard() as served:
        page = served.wait_for(200, "kubernetes:mnist")
        lab.submit(name="second")
        served.wait_for(200, "kubernetes:second")
        job = served.get("job/kubernetes%3Amnist/")
        settings = served.get("job/kubernetes%3Amnist/settings")
        missing = served.get("job/kubernetes%3Aother/")[0]
        lab.server.stop()
        try:
            away = served.wait_for(200, 'role="alert"')
        finally:
            lab.server.start()
        lab.cluster.delete("MPIJob", "second")
        wait_until(lambda: "second" not in served.get()[1], "the end of the second job")
    with dashboard(".") as served:
        folder = served.wait_for(200, "model.job")

    for shown in (page, away):
        for text in ('href="/job/model.job/"', 'href="/job/kubernetes%3Amnist/"', ">2 of 2<"):
            assert text in shown
    assert (job[0], "50 of 200" in job[1]) == (200, True)
    assert (settings[0], missing) == (200, 404)
    assert "kubernetes:" not in folder


def test_who_may_not_list_the_jobs_of_the_cluster_sees_the_others(stranger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_job(tmp_path)

    with dashboard() as served:
        page = served.wait_for(200, "list mpijobs.kubeflow.org")

    assert "model.job" in page
    assert 'role="alert"' in page


def test_a_page_says_what_pods_wait_for(lab):
    lab.submit()
    lab.add_pods()
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off <b>"}
    status = {"name": "main", "restartCount": 0, "state": {"waiting": waiting}}
    lab.set_pod("mnist-worker-0", "Pending", containerStatuses=[status])
    lab.server.log_files.clear()

    with dashboard("mnist") as served:
        code, page, _ = served.get()

    assert code == 200
    assert '="waiting"' in page
    assert "ImagePullBackOff: Back-off &lt;" in page


@pytest.mark.long
def test_a_job_may_come_and_go(lab):
    with dashboard("mnist") as served:
        before = served.get()
        lab.submit()
        served.wait_for(200, 'data-state="waiting"')
        lab.cluster.delete("MPIJob", "mnist")
        served.wait_for(404, "mnist")

    assert before[0] == 404
    assert "mnist" in before[1]
    assert "Traceback" not in before[1]


@pytest.mark.long
def test_while_the_api_server_is_away_the_last_is_shown(lab, tmp_path):
    lab.run()
    write_log(lab, steps=50)

    with dashboard("mnist") as served:
        served.wait_for(200, "50 of 200")
        lab.server.stop()
        try:
            page = served.wait_for(503, 'role="alert"')
            status = served.get("status.json")
        finally:
            lab.server.start()
        served.wait_for(200, "50 of 200")

    assert "50 of 200" in page
    assert status[0] == 503
    assert "error" in json.loads(status[1])


@pytest.mark.long
def test_an_api_server_that_hangs_holds_up_neither_the_page_nor_its_end(lab, tmp_path):
    lab.run()
    write_log(lab, steps=50)
    with dashboard("mnist") as served:
        served.wait_for(200, "2 of 2 pods warm")
        lab.server.faults.delay_seconds = 20.0
        page = served.wait_for(503, "has not answered")
        began = time.monotonic()
        code, said = served.end(signal.SIGINT)

    assert "2 of 2 pods" in page
    assert (code, said) == (130, "error: interrupted\n")
    assert time.monotonic() - began < 5.0
    lab.server.faults.delay_seconds = 0.0


def test_a_log_that_cannot_be_read_leaves_the_pods_on_the_page(lab):
    lab.run()
    with dashboard("mnist") as served:
        page = served.wait_for(503, "log")

    assert "2 of 2 pods" in page


def test_who_may_not_look_is_told_so_on_the_page(lab, stranger):
    lab.run()

    with dashboard("mnist") as served:
        code, page, _ = served.get()

    assert (code, "mpijobs.kubeflow.org" in page) == (503, True)


def test_a_name_without_a_cluster_is_an_error_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert main(["dashboard", "mnist", "--port", "0"]) == 11
    assert capsys.readouterr().out == ""
