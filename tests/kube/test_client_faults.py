"""What goes wrong between us and an API server, and what the user reads of it."""

import subprocess
import sys

import pytest
import yaml
from urllib3.exceptions import InsecureRequestWarning

from edl_horovod.cluster import client as client_module
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.credentials import find_cluster
from edl_horovod.cluster.refusals import Expired
from edl_horovod.errors import (
    ClusterError,
    ClusterUnreachable,
    CredentialsRefused,
    MissingDependency,
    NoCluster,
    NoMPIJobs,
)
from tests.kube.apiserver.admission import MASTERS, User
from tests.kube.apiserver.server import ApiServer
from tests.kube.certificates import server_context
from tests.kube.conftest import ADMIN, add_tokens, config_map, pod, write_kubeconfig
from tests.kube.lab import background, connect


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(ADMIN)
    return path


@pytest.fixture
def cluster(server, tmp_path, token_file):
    path = write_kubeconfig(tmp_path / "config", server.url, {"tokenFile": str(token_file)})
    with connect(path) as cluster:
        yield cluster


def version(cluster: Cluster) -> str:
    return next(cluster.pages("Pod")).version


def test_a_token_that_expired_is_read_again(cluster, server, token_file):
    cluster.find("Pod")
    server.tokens["next-token"] = server.tokens.pop(ADMIN)
    token_file.write_text("next-token")

    assert cluster.find("Pod") == []


def test_a_token_that_stays_expired_is_told(cluster, server):
    del server.tokens[ADMIN]

    with pytest.raises(CredentialsRefused, match=server.url):
        cluster.find("Pod")


def test_a_connection_that_was_closed_while_idle_is_replaced(cluster, server):
    server.faults.drop = 1

    assert cluster.find("Pod") == []


def test_a_server_that_is_away_is_told(cluster, server):
    server.stop()

    with pytest.raises(ClusterUnreachable, match=rf"{server.url} .* refused"):
        cluster.find("Pod")

    server.start()
    assert cluster.find("Pod") == []


@pytest.fixture
def hurry(monkeypatch):
    """Wait for answers and for watches, of so many seconds, no longer than a test may."""

    def hurry_up(watch_seconds: int = 0) -> None:
        for name, seconds in (("ANSWER_SECONDS", 0.3), ("WATCH_SECONDS", watch_seconds)):
            monkeypatch.setattr(client_module, name, seconds)

    return hurry_up


def find(cluster: Cluster, old: str) -> None:
    cluster.find("Pod")


def create(cluster: Cluster, old: str) -> None:
    """It is not safe to repeat."""
    cluster.create(config_map("one"))


def watch(cluster: Cluster, old: str) -> None:
    list(cluster.watch("Pod", old))


FAILURES = {
    "a broken connection, not tried again": (create, {"drop": 1}, "configmaps one"),
    "a failure": (find, {"fail": [500]}, "HTTP 500"),
    "a late answer": (create, {"delay_seconds": 1.0}, "timed out"),
    "a silent watch": (watch, {"watch_stall_seconds": 2.0}, "pods .* timed"),
    "a watch cut in a line": (watch, {"cut_after_bytes": 100}, "watch pods"),
}


@pytest.mark.parametrize(("call", "faults", "pattern"), FAILURES.values(), ids=FAILURES)
def test_what_fails_is_told(cluster, server, hurry, call, faults, pattern):
    old = version(cluster)
    cluster.create(pod("one"))
    if any(fault.endswith("_seconds") for fault in faults):
        hurry()
    for fault, extent in faults.items():
        setattr(server.faults, fault, extent)

    with pytest.raises(ClusterUnreachable, match=pattern):
        call(cluster, old)


@pytest.mark.parametrize("is_a_status", [True, False])
def test_a_watch_from_a_forgotten_version_has_expired(cluster, server, is_a_status):
    old = version(cluster)
    cluster.create(pod("one"))
    server.compact()
    server.faults.is_gone_a_status = is_a_status

    with pytest.raises(Expired, match="too old"):
        list(cluster.watch("Pod", old))


def test_a_watch_brings_bookmarks(cluster, server):
    server.set_bookmark_seconds(0.05)
    old = version(cluster)
    cluster.create(config_map("one"))

    event = next(cluster.watch("Pod", old))

    assert event.kind == "BOOKMARK"
    assert int(event.version) > int(old)


def test_a_watch_ends_when_the_server_says_so(cluster, hurry):
    hurry(watch_seconds=1)

    events = list(cluster.watch("Pod", version(cluster)))

    assert [event.kind for event in events] == ["BOOKMARK"]


def test_what_a_deleted_owner_owned_goes_with_it(cluster):
    owner = cluster.create(config_map("owner"))["metadata"]
    owned = config_map("owned")
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    ]
    cluster.create(owned)

    cluster.delete("ConfigMap", "owner")

    assert cluster.find("ConfigMap") == []


def test_a_cluster_without_mpi_operator_is_told(bare_server):
    with connect(bare_server) as cluster, pytest.raises(NoMPIJobs, match=r"mpi-operator 0\.8"):
        cluster.get("MPIJob", "one")


def test_logs_are_followed_to_their_end(cluster, server, tmp_path):
    cluster.create(pod("one"))
    with pytest.raises(ClusterError, match="waiting to"):
        list(cluster.log_lines("one"))
    written = server.log_files["default", "one"] = tmp_path / "one.log"
    written.write_text("first\nsecond\n")
    lines = cluster.log_lines("one", follow=True, tail=1)
    assert next(lines) == "second"

    def end() -> None:
        with written.open("a") as log:
            log.write("third\n")
        # Not through `cluster`: its connection is busy with the log.
        with connect(tmp_path / "config") as other:
            other.delete("Pod", "one", grace_seconds=0)

    with background(end):
        assert list(lines) == ["third"]


@pytest.fixture
def tls_server(tls_folder):
    with ApiServer(tls=server_context(tls_folder)) as server:
        yield server


@pytest.fixture
def tls_kubeconfig(tls_server, tmp_path):
    return write_kubeconfig(tmp_path / "config", tls_server.url, {"token": ADMIN})


def test_a_certificate_of_somebody_else_is_told(tls_kubeconfig):
    with connect(tls_kubeconfig) as cluster, pytest.raises(ClusterUnreachable, match="certificate"):
        cluster.find("Pod")


def test_an_authority_that_the_machine_trusts_is_trusted(tls_kubeconfig, tls_folder, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_folder / "ca.crt"))
    with connect(tls_kubeconfig) as cluster:
        cluster.find("Pod")


def test_a_kubeconfig_may_say_that_certificates_are_not_looked_at(tls_kubeconfig):
    kubeconfig = yaml.safe_load(tls_kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    tls_kubeconfig.write_text(yaml.safe_dump(kubeconfig))
    with connect(tls_kubeconfig) as cluster, pytest.warns(InsecureRequestWarning):
        cluster.find("Pod")


def test_a_pod_uses_its_service_account(tls_server, tls_folder, tmp_path, monkeypatch):
    (tls_folder / "token").write_text("first-token")
    (tls_folder / "namespace").write_text("default")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    host, _, port = tls_server.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    user = User("system:serviceaccount:default:job", (MASTERS,))
    tls_server.tokens.clear()
    tls_server.tokens["first-token"] = user
    with Cluster(find_cluster(service_account=tls_folder)) as cluster:
        assert cluster.namespace == "default"
        assert cluster.find("Pod") == []
        # The kubelet renews it before it expires.
        tls_server.tokens.clear()
        tls_server.tokens["second-token"] = user
        (tls_folder / "token").write_text("second-token")
        assert cluster.find("Pod") == []


def test_credentials_that_are_damaged_are_told(tmp_path):
    path = write_kubeconfig(
        tmp_path / "config",
        "https://127.0.0.1:1",
        {"token": "x", "client-certificate": "/no/such/file"},
    )
    with pytest.raises(NoCluster, match="such/file"):
        connect(path)


def test_a_kubeconfig_without_its_user_is_told(server, tmp_path):
    add_tokens(server)
    path = write_kubeconfig(tmp_path / "config", server.url, {"token": ADMIN})
    kubeconfig = yaml.safe_load(path.read_text())
    kubeconfig["users"] = []
    path.write_text(yaml.safe_dump(kubeconfig))

    with connect(path) as cluster, pytest.raises(CredentialsRefused):
        cluster.find("Pod")


def test_the_missing_extra_is_named():
    program = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from edl_horovod.errors import MissingDependency\n"
        "try:\n    import edl_horovod.cluster.client\n"
        "except MissingDependency as e:\n    print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ".[kubernetes]" in done.stdout
    assert MissingDependency.exit_code == 8
