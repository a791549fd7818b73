"""`edl dashboard` of a job on this machine, over HTTP."""

import contextlib
import html
import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.cookiejar import CookieJar

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.files import marker
from edl_horovod.job.directory import KIND, JobDir
from edl_horovod.launch.local_jobs import folder_of
from tests.dashboard import Dashboard, dashboard, new_job
from tests.job_events import append, event
from tests.programs import run_python
from tests.waiting import wait_until

HOSTILE = "<script>alert(1)</script>"
NO_JOB = "no config.yaml"
ROW = r"<tr><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td>"
"""Setting, value and origin, on the page of settings."""


@pytest.fixture
def job_dir(tmp_path):
    path = new_job(tmp_path)
    fields = {"total_steps": 200, "records_per_second": 1000.0, "size": 2}
    append(
        path,
        "launcher",
        event("job", state="running", task="train"),
        event("worker", worker="localhost:1", state="failed", message=HOSTILE),
        event("reset", generation=1, new_size=2, seconds=0.1),
        *(event("step", step=n, loss=1 / n, records_seen=n, **fields) for n in range(1, 51)),
    )
    return path


def test_a_page_and_its_status_show_step_and_loss(job_dir, capsys):
    with dashboard(job_dir) as served:
        code, page, headers = served.get()
        status, text, _ = served.get("status.json")
        css = served.get("assets/style.css")

    assert served.url.startswith("http://127.0.0.1:")
    assert (code, status, css[0]) == (200, 200, 200)
    assert "50 of 200" in page
    facts = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", page))
    assert (facts["epoch"], facts["loss"]) == ("1", "0.02")
    assert "first 1, last 0.02" in page
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert css[2]["content-type"].startswith("text/css")
    assert main(["status", str(job_dir), "-o", "json"]) == 0
    assert json.loads(text) == json.loads(capsys.readouterr().out)


def changes(served: Dashboard, path: str = "") -> Iterator[dict]:
    """What a browser that follows a page is sent; the first message has all sections."""
    with urllib.request.urlopen(f"{served.url}{path}?changes", timeout=30) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def test_a_page_is_sent_the_sections_that_change(job_dir):
    with dashboard(job_dir) as served, contextlib.closing(changes(served)) as stream:
        first = next(stream)
        lost = event("worker", worker="localhost:0", state="lost", message="killed")
        append(job_dir, "coordinator", lost)
        later = next(message for message in stream if "events" in message["sections"])

    assert {"head", "facts", "charts", "account", "processes", "logs"} < first["sections"].keys()
    assert "lost: killed" in later["sections"]["events"]
    assert "account" not in later["sections"]


def test_many_who_follow_a_page_share_one_reader(job_dir):
    count_reads = (
        "from edl_horovod.job import events; reads = []\n"
        "read = events.Tail.new_events\n"
        "def counted(tail):\n"
        "    reads.append(tail)\n"
        "    open('reads', 'w').write(str(len(reads)))\n"
        "    return read(tail)\n"
        f"import os; os.chdir({str(job_dir.parent)!r})\n"
        "from edl_horovod.displays.page import snapshot; snapshot.Tail.new_events = counted"
    )
    with dashboard(job_dir, first=count_reads) as served, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(contextlib.closing(changes(served))) for _ in range(10)]
        for _ in range(3):
            for stream in streams:
                next(stream)
        append(job_dir, "launcher", event("log", message="new"))
        for stream in streams:
            assert any("new" in message["sections"].get("events", "") for message in stream)

    assert int((job_dir.parent / "reads").read_text()) == 2


def test_streams_leave_connections_to_others_and_end_with_the_server(served):
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            next(stack.enter_context(contextlib.closing(changes(served))))
        assert served.get("?changes")[0] == 503
        assert served.get()[0] == 200

        assert served.end() == (130, "error: interrupted\n")


def test_streams_that_begin_at_once_keep_to_the_limit(served):
    request = b"GET /?changes HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(connect(served)) for _ in range(48)]
        for stream in streams:
            stream.sendall(request)
        answers = [stream.recv(12, socket.MSG_WAITALL) for stream in streams]

    def follows_again():
        stream = changes(served)
        with contextlib.suppress(urllib.error.HTTPError), contextlib.closing(stream):
            return next(stream)

    wait_until(follows_again, "room for another stream", seconds=20)
    assert sorted(answers) == [b"HTTP/1.1 200"] * 32 + [b"HTTP/1.1 503"] * 16


@pytest.mark.further
def test_a_page_that_is_followed_for_long_is_not_ended(job_dir):
    patience = "from edl_horovod.displays.page import server; server.REQUEST_SECONDS = 2.0"
    with dashboard(job_dir, first=patience) as served:
        began = time.monotonic()
        with contextlib.closing(changes(served)) as stream:
            assert any(time.monotonic() - began > 4.0 for _ in stream)


def test_all_jobs_below_a_folder_have_a_page(job_dir, tmp_path):
    (tmp_path / "sweep").mkdir()
    other = new_job(tmp_path / "sweep")
    append(other, "launcher", event("job", state="finished", metrics={"auc": 0.75}))

    with dashboard(tmp_path) as served:
        page = served.wait_for(200, "auc 0.75")
        job = served.get("job/sweep/model.job/")
        status = served.get("job/model.job/status.json")
        metrics = served.get("metrics")
        own_metrics = served.get("job/sweep/model.job/metrics")
        missing = [served.get(path)[0] for path in ("job/other/", "job/../", "job/sweep/settings")]
        with contextlib.closing(changes(served)) as stream:
            assert "model.job" in next(stream)["sections"]["jobs"]

    assert '="/job/sweep/model.job/"' in page
    assert "50 of 200" in page
    assert (job[0], 'data-state="finished"' in job[1]) == (200, True)
    assert json.loads(status[1])["step"] == 50
    assert metrics[0] == own_metrics[0] == 200
    lines = set(metrics[1].splitlines())
    assert set(own_metrics[1].splitlines()) <= lines
    assert f'edl_steps_done{{job_name="{job_dir}"}} 50.0' in lines
    assert missing == [404, 404, 404]


def test_the_end_of_a_log_stays_text(job_dir):
    (job_dir / "logs").mkdir()
    log = job_dir / "logs" / "worker-0.log"
    log.write_bytes(b"old\n" * 100_000 + HOSTILE.encode() + b"\n\x1b[31mred\xff\x00\n")
    with dashboard(job_dir) as served:
        links = served.get()[1]
        code, page, _ = served.get("logs/worker-0")
        log.unlink()
        wait_until(lambda: served.get("logs/worker-0")[0] == 404, "no log", pause=0.6)

    assert '"logs/worker-0"' in links
    assert code == 200
    assert len(page) < 100_000
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page
    assert "red\ufffd\ufffd" in page


def test_the_settings_say_where_each_came_from(job_dir):
    config = JobDir(job_dir).read_config()
    origins = {"train.epochs": "/runs/mine.yaml", "data": "command line"}
    config = replace(config, output="/derived", train=replace(config.train, epochs=77))
    resolved.dump(replace(config, origins=origins), job_dir / "config.yaml")
    with dashboard(job_dir) as served:
        code, page, _ = served.get("settings")

    rows = {key: origin for key, _, origin in re.findall(ROW, page)}
    assert code == 200
    assert (rows["train.epochs"], rows["data"]) == ("/runs/mine.yaml", "command line")
    assert (rows["output"], rows["train.batch_size"]) == ("edl train", "default")
    assert page.index("/runs/mine.yaml") < page.index("<td>default</td>")
    assert "origins" not in rows


def test_the_settings_of_an_old_job_came_from_where_nobody_knows(served):
    rows = {key: origin for key, _, origin in re.findall(ROW, served.get("settings")[1])}

    assert (rows["output"], rows["train.batch_size"]) == ("unknown", "default")


def test_new_events_are_shown(job_dir):
    with dashboard(job_dir) as served:
        served.wait_for(200, "50 of 200")
        finished = event("job", state="finished", task="train", metrics={"auc": 0.75})
        append(job_dir, "launcher", finished)

        assert "auc 0.75" in served.wait_for(200, 'data-state="finished"')


def test_a_job_that_is_not_there_yet_is_waited_for(job_dir):
    away = job_dir.with_name("away")
    job_dir.rename(away)
    with dashboard(job_dir) as served:
        code, page, _ = served.get()
        status = served.get("status.json")
        away.rename(job_dir)
        served.wait_for(200, "50 of 200")
        job_dir.rename(away)
        served.wait_for(404, NO_JOB)

    assert (code, status[0]) == (404, 404)
    assert NO_JOB in page
    assert NO_JOB in json.loads(status[1])["error"]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("name", ["empty", "model.job"])
def test_a_directory_without_a_job_yet_is_the_page_of_that_job(tmp_path, name):
    path = tmp_path / name
    path.mkdir()
    if name == "model.job":
        (path / ".gitkeep").write_text("")
    with dashboard(path) as served:
        code, page, _ = served.get()
        (path / ".gitkeep").unlink(missing_ok=True)
        new_job(tmp_path, name)
        append(path, "launcher", event("job", state="finished"))
        served.wait_for(200, 'data-state="finished"')

    assert (code, NO_JOB in page) == (404, True)


def test_a_folder_does_not_list_itself(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    folder = folder_of(str(tmp_path))
    assert folder is not None
    marker.write(tmp_path, KIND)

    assert folder.snapshot().jobs == ()


def test_who_comes_by_a_foreign_name_is_refused(job_dir):
    with dashboard(job_dir) as served:
        port = port_of(served)
        foreign = served.get(headers={"Host": f"evil.example:{port}"})
        local = served.get(headers={"Host": f"localhost:{port}"})

    assert (foreign[0], local[0]) == (421, 200)
    assert "50" not in foreign[1]


def test_other_machines_need_the_token_in_the_url(job_dir):
    with dashboard(job_dir, "--host", "0.0.0.0") as served:
        port, token = re.search(r":(\d+)/\?token=(\S+)", served.url).groups()
        served.url = f"http://127.0.0.1:{port}/"
        refused = [served.get(path)[0] for path in ("", "?token=x", "?changes", "metrics")]
        wrong = served.get(headers={"Authorization": "Bearer x"})[0]
        right = {"Authorization": f"Bearer {token}"}
        bearer = served.get("metrics", headers=right)[0]
        # What a Prometheus elsewhere, or a phone, calls this machine.
        by_name = served.get("metrics", headers={**right, "Host": f"trainer-1.internal:{port}"})[0]
        jar = CookieJar()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        with browser.open(f"{served.url}?token={token}") as answer:
            shown = (answer.status, answer.url, "50 of 200" in answer.read().decode())
        with browser.open(f"{served.url}status.json") as answer:
            assert json.load(answer)["step"] == 50

    assert refused == [401, 401, 401, 401]
    assert (wrong, bearer, by_name) == (401, 200, 200)
    assert shown == (200, served.url, True)
    assert all(cookie.has_nonstandard_attr("HttpOnly") for cookie in jar)


def test_the_token_may_come_from_the_environment(job_dir):
    with dashboard(job_dir, "--host", "0.0.0.0", EDL_DASHBOARD_TOKEN="ours") as served:
        assert served.url.endswith("/?token=ours")


def test_a_token_from_the_environment_is_needed_on_this_machine_as_well(job_dir):
    with dashboard(job_dir, EDL_DASHBOARD_TOKEN="ours") as served:
        served.url, _, token = served.url.partition("?token=")
        refused = served.get("status.json")[0]
        code, _, _ = served.get("status.json", headers={"Authorization": f"Bearer {token}"})

    assert (token, refused, code) == ("ours", 401, 200)


@pytest.mark.long
def test_a_browser_reads_the_pages_of_two_ports(job_dir):
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with (
        dashboard(job_dir, EDL_DASHBOARD_TOKEN="one") as first,
        dashboard(job_dir, EDL_DASHBOARD_TOKEN="two") as second,
    ):
        for served in (first, second, first):
            with browser.open(served.url) as answer:
                served.url = answer.url

    assert not [url for url in (first.url, second.url) if "token" in url]
    assert {cookie.get_nonstandard_attr("SameSite").lower() for cookie in jar} == {"lax"}


def test_only_get_is_answered(served):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert served.get(method=method, data=b"x")[0] == 405, method


def test_nothing_else_is_served(served):
    for path in (
        *("events.jsonl", "../config.yaml", "%2e%2e/config.yaml", "docs", "favicon.ico"),
        *("assets/server.py", "assets/../server.py", "logs/%2e%2e%2fconfig", "logs/events"),
        "job/x/",
    ):
        assert served.get(path)[0] == 404, path


@pytest.fixture
def served(job_dir):
    with dashboard(job_dir) as running:
        yield running


def test_what_is_no_http_ends_a_connection_and_nothing_else(served):
    for garbage in (b"\x16\x03\x01\x02\x00\x01" * 50, b"GET / HTTP/1.1\r\n\r\n", b"\n" * 100_000):
        with connect(served, garbage) as connection:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    assert served.get()[0] == 200


def codes_of_readers(served: Dashboard, number: int) -> set[int]:
    """The codes that readers get who come at once."""
    with ThreadPoolExecutor(16) as pool:
        return set(pool.map(lambda _: served.get()[0], range(number)))


def test_many_readers_at_once_are_answered(served):
    assert codes_of_readers(served, 200) == {200}


def port_of(served: Dashboard) -> int:
    return int(served.url.rstrip("/").rpartition(":")[2])


def connect(served: Dashboard, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port_of(served)), timeout=30)
    connection.sendall(sent)
    return connection


@pytest.mark.long(after=1)
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local"], ids=["nothing", "half"])
def test_connections_that_ask_for_nothing_keep_nobody_out(served, sent):
    with contextlib.ExitStack() as stack:
        for number in range(150):
            stack.enter_context(connect(served, sent))
            if number % 10 == 0:
                assert served.get()[0] == 200
        assert codes_of_readers(served, 50) == {200}


REQUEST = b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: local", REQUEST, REQUEST + b"GET /"],
    ids=["nothing", "half", "one request", "one and a part"],
)
def test_a_connection_that_sends_no_whole_request_is_ended(job_dir, sent):
    patience = "from edl_horovod.displays.page import server; server.REQUEST_SECONDS = 0.5"
    with dashboard(job_dir, first=patience) as served, connect(served, sent) as connection:
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(65536):
                answer += received
        assert answer.startswith(b"HTTP/1.1 200" if sent.startswith(REQUEST) else b"")
        assert served.get()[0] == 200


@pytest.mark.long(after=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(served, number):
    with connect(served):  # A browser keeps one open.
        code, said = served.end(number)

    assert (code, said) == (130, "error: interrupted\n")
    with pytest.raises(ConnectionRefusedError):
        connect(served)


def test_a_port_that_is_taken_is_one_error(served, job_dir, capsys):
    port = port_of(served)

    assert main(["dashboard", str(job_dir), "--port", str(port)]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert f"{port} of 127.0.0.1" in said.err


@pytest.mark.long(after=1)
@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "jinja2", "prometheus_client"])
def test_without_its_extra_it_says_what_to_install(job_dir, missing):
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from edl_horovod.cli.main import main\n"
        f"sys.exit(main(['dashboard', {str(job_dir)!r}, '--port', '0']))"
    )
    done = run_python("-c", script)

    assert done.returncode == 8
    assert "[dashboard]" in done.stderr
