"""Host discovery where the API server, the network or the credentials fail."""

import functools
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from horovod.runner.elastic.discovery import HostDiscoveryScript

import edl_horovod.cluster
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.credentials import Place
from edl_horovod.cluster.objects import WORKER, pod_labels
from edl_horovod.errors import NoCluster
from tests.kube.apiserver.admission import MASTERS, User
from tests.kube.apiserver.server import ApiServer
from tests.kube.conftest import ADMIN, STRANGER, pod, write_kubeconfig
from tests.kube.discovering import Program, hosts_in, wait_until
from tests.waiting import watch

SCRIPT = Path(edl_horovod.cluster.__file__).parent / "pod" / "host-discovery.sh"
READY = {
    "phase": "Running",
    "podIP": "10.0.0.7",
    "conditions": [{"type": "Ready", "status": "True"}],
}


@pytest.fixture
def kubeconfig(server, tmp_path):
    (tmp_path / "token").write_text(ADMIN)
    user = {"tokenFile": str(tmp_path / "token")}
    return write_kubeconfig(tmp_path / "config", server.url, user)


@pytest.fixture
def cluster(server, kubeconfig, tmp_path):
    """The test's own: its token does not expire."""
    server.tokens["test-token"] = User("test", (MASTERS,))
    path = write_kubeconfig(tmp_path / "test-config", server.url, {"token": "test-token"})
    with Cluster(Place(namespace="default", kubeconfig=str(path), context="test")) as cluster:
        yield cluster


def add(cluster: Cluster, server: ApiServer, number: int) -> str:
    name = f"job-worker-{number}"
    uid = cluster.create(pod(name, labels=pod_labels("job", WORKER)))["metadata"]["uid"]
    server.set_status("pods", "default", name, READY)
    return f"{name}.{uid}"


def num(server: ApiServer, verb: str) -> int:
    """Requests of the program: it alone goes by the label of the job's pods."""
    return sum(seen.verb == verb and "labelSelector" in seen.query for seen in server.seen)


@pytest.fixture
def first(cluster, server):
    return add(cluster, server, 0)


@pytest.fixture
def start(kubeconfig, tmp_path):
    return functools.partial(Program, kubeconfig, "default", tmp_path)


@pytest.fixture
def program(first, start, tmp_path):
    """It has found the first host and watches."""
    with start("--events", str(tmp_path / "events")) as started:
        wait_until(lambda: hosts_in(started.output) == {first: 2}, started)
        yield started


def wait_for_watch(server: ApiServer, program: Program, number: int = 1) -> None:
    wait_until(lambda: num(server, "watch") >= number, program)


@pytest.fixture
def watching(program, server):
    """The program, whose watch has begun."""
    wait_for_watch(server, program)
    return program


def test_it_lists_once_and_then_watches(program, server, cluster, first):
    server.set_bookmark_seconds(0.02)
    hosts = {first: 2} | {add(cluster, server, number): 2 for number in range(1, 6)}

    wait_until(lambda: hosts_in(program.output) == hosts, program)

    assert num(server, "list") == 1
    assert num(server, "watch") == 1


def test_a_change_that_changes_no_host_writes_nothing(program, server, cluster, first):
    before = program.output.stat()
    cluster.patch("Pod", "job-worker-0", {"metadata": {"annotations": {"a": "1"}}})
    second = add(cluster, server, 1)
    cluster.delete("Pod", "job-worker-1", grace_seconds=0)
    third = add(cluster, server, 2)
    wait_until(lambda: hosts_in(program.output) == {first: 2, third: 2}, program)

    after = program.output.stat()
    assert second not in program.output.read_text()
    # A file system may give the number of a removed file to the next one.
    assert (after.st_ino, after.st_mtime_ns) != (before.st_ino, before.st_mtime_ns)
    cluster.patch("Pod", "job-worker-0", {"metadata": {"annotations": {"a": "2"}}})
    watch(lambda: program.output.stat().st_mtime_ns == after.st_mtime_ns, 0.3)


def test_a_broken_watch_goes_on_where_it_was(watching, server, cluster, first):
    server.break_streams()
    second = add(cluster, server, 1)

    wait_until(lambda: hosts_in(watching.output) == {first: 2, second: 2}, watching)
    assert num(server, "list") == 1
    assert not (watching.output.parent / "events").read_text(), "that is worth no word"


@pytest.mark.long(after=1)
@pytest.mark.parametrize("is_a_status", [True, False])
def test_after_a_compaction_it_lists_again(watching, server, cluster, first, is_a_status):
    server.faults.is_gone_a_status = is_a_status

    server.stop()
    # A pod goes, and nobody will be told.
    server.store.delete("pods", "default", "job-worker-0", {"gracePeriodSeconds": 0})
    server.compact()
    server.start()

    wait_until(lambda: hosts_in(watching.output) == {}, watching)
    assert num(server, "list") == 2


def test_while_the_server_is_away_the_last_answer_stays_and_says_so(
    watching, server, cluster, first
):
    server.stop()
    wait_until(lambda: watching.output.read_text().startswith("# Not current since"), watching)
    assert "reached" in watching.output.read_text().splitlines()[0]
    assert hosts_in(watching.output) == {first: 2}
    server.start()
    wait_until(lambda: "#" not in watching.output.read_text(), watching)
    second = add(cluster, server, 1)
    wait_until(lambda: hosts_in(watching.output) == {first: 2, second: 2}, watching)

    lines = (watching.output.parent / "events").read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["stale", "current"]
    assert "not current" in watching.log()


def test_it_claims_to_be_current_only_once_it_is(watching, server, cluster, first):
    """The watch of a server that was restarted opens, and only then says that it is too old."""
    server.stop()
    server.store.delete("pods", "default", "job-worker-0", {"gracePeriodSeconds": 0})
    wait_until(lambda: "#" in watching.output.read_text(), watching)
    # By then it waits for longer than it takes to look at the file.
    watch(lambda: "#" in watching.output.read_text(), 2.0)
    server.start()

    def is_right() -> bool:
        text = watching.output.read_text()
        assert text == "" or text.startswith("#"), "it claims to be current, and is not"
        return text == ""

    wait_until(is_right, watching)


def test_a_version_that_is_too_old_is_followed_by_a_list_at_once(watching, server, cluster, first):
    for number in range(2, 7):
        server.break_streams()  # Watches that bring nothing: the next one comes later each time.
        wait_for_watch(server, watching, number)

    def delete_untold() -> None:
        server.store.delete("pods", "default", "job-worker-0", {"gracePeriodSeconds": 0})
        server.store.compact()

    server.do(delete_untold)
    began_at = time.monotonic()
    wait_until(lambda: hosts_in(watching.output) == {}, watching)

    assert time.monotonic() - began_at < 1.2, "the next watch would have come 1.6 s later"


def test_sigterm_ends_it_while_the_server_is_away(program, server):
    server.stop()
    wait_until(lambda: "#" in program.output.read_text(), program)

    program.__exit__()

    assert program.exit_code == 0


def test_a_token_that_expired_is_read_again(watching, server, cluster, first, tmp_path):
    server.tokens["next-token"] = server.tokens.pop(ADMIN)
    (tmp_path / "token").write_text("next-token")

    server.break_streams()
    second = add(cluster, server, 1)

    wait_until(lambda: hosts_in(watching.output) == {first: 2, second: 2}, watching)


def test_a_token_that_comes_late_is_waited_for(watching, server, cluster, first, tmp_path):
    user = server.tokens.pop(ADMIN)
    server.break_streams()
    wait_until(lambda: "#" in watching.output.read_text(), watching)
    comment = watching.output.read_text().splitlines()[0]
    for text in (watching.log(), comment):
        assert "credentials" in text, "it does answer"

    server.tokens["next-token"] = user
    (tmp_path / "token").write_text("next-token")

    wait_until(lambda: "#" not in watching.output.read_text(), watching)


def test_a_watch_that_is_cut_in_a_line_loses_nothing(watching, server, cluster, first):
    server.faults.cut_after_bytes = 100
    hosts = {first: 2, add(cluster, server, 1): 2}
    watch(lambda: hosts_in(watching.output) == {first: 2}, 0.3)
    server.faults.cut_after_bytes = 0

    wait_until(lambda: hosts_in(watching.output) == hosts, watching)


def test_a_server_that_drops_and_fails_is_tried_again(watching, server, cluster, first):
    second = add(cluster, server, 1)
    server.faults.drop, server.faults.fail = 2, [500, 429, 503]

    server.break_streams()

    wait_until(lambda: not server.faults.fail, watching)
    third = add(cluster, server, 2)
    wait_until(lambda: hosts_in(watching.output) == {first: 2, second: 2, third: 2}, watching)


def test_a_failed_pod_is_removed_although_the_server_fails_first(server, start, cluster, first):
    with start("--replace-failed") as program:
        wait_for_watch(server, program)
        server.faults.fail = [500]
        server.set_status("pods", "default", "job-worker-0", {"phase": "Failed"})
        wait_until(lambda: not server.faults.fail, program)  # Before requests of the test's own.
        add(cluster, server, 1)

        wait_until(lambda: "job-worker-0 has failed for good" in program.log(), program)
        failed = cluster.get("Pod", "job-worker-0")
        assert "deletionTimestamp" in failed["metadata"]
        wait_until(lambda: first not in (hosts_in(program.output) or {first}), program)


def test_it_may_start_before_the_server(server, start, first):
    server.stop()
    with start() as program:
        wait_until(lambda: "not current" in program.log(), program)
        assert not program.output.exists(), "nobody knows which hosts there are"
        server.start()
        wait_until(lambda: hosts_in(program.output) == {first: 2}, program)


def test_what_an_earlier_run_wrote_stays_while_the_server_is_away(server, start, tmp_path):
    (tmp_path / "hosts").write_text("job-worker-0.u-1:2\n")
    server.stop()

    with start() as program:
        wait_until(lambda: "not current" in program.log(), program)

    assert program.output.read_text() == "job-worker-0.u-1:2\n"


def test_who_may_not_list_pods_is_told_and_tried_again(server, start, first, tmp_path):
    (tmp_path / "token").write_text(STRANGER)
    with start() as program:
        wait_until(lambda: "may not list pods in namespace default" in program.log(), program)
        # A RoleBinding that comes after the pod is nothing unusual.
        server.tokens[STRANGER] = User("stranger", (MASTERS,))
        wait_until(lambda: hosts_in(program.output) == {first: 2}, program)


def test_no_credentials_end_it(tmp_path):
    with Program(tmp_path / "missing", "default", tmp_path) as program:
        program.process.wait(30)

    assert program.exit_code == NoCluster.exit_code
    assert "no kubeconfig" in program.log()


# -- the script that Horovod runs


def run_script(path: Path, wait_seconds: int = 0) -> subprocess.CompletedProcess:
    environment = {**os.environ, "EDL_HOSTS_WAIT_SECONDS": str(wait_seconds)}
    return subprocess.run(
        [SCRIPT, path], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("# Not current since then.\na.job.ns.svc:2\n\nb:1\n", "a.job.ns.svc:2\nb:1\n"),
        ("", ""),
    ],
)
def test_the_script_prints_hosts_and_no_comments(tmp_path, text, printed):
    (tmp_path / "hosts").write_text(text)

    done = run_script(tmp_path / "hosts")

    assert (done.returncode, done.stdout) == (0, printed)


def test_the_script_waits_for_a_file_that_is_not_there_yet(tmp_path):
    timer = threading.Timer(0.5, lambda: (tmp_path / "hosts").write_text("a:1\n"))
    timer.start()

    done = run_script(tmp_path / "hosts", wait_seconds=20)
    timer.join()

    assert (done.returncode, done.stdout) == (0, "a:1\n")


def test_the_script_fails_where_the_file_never_comes(tmp_path):
    done = run_script(tmp_path / "hosts")

    assert (done.returncode, done.stdout) == (1, "")
    assert "pod.discovery" in done.stderr


def test_horovod_reads_the_script(tmp_path):
    (tmp_path / "hosts").write_text("# stale\na.job.ns.svc:2\nb.job.ns.svc:1\n")

    script = HostDiscoveryScript(f"{SCRIPT} {tmp_path / 'hosts'}", 1)

    assert script.find_available_hosts_and_slots() == {"a.job.ns.svc": 2, "b.job.ns.svc": 1}
