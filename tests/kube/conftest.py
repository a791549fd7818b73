"""API servers to test against: ours, or a real one where KUBEBUILDER_ASSETS names its binaries."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kubernetes import client as k8s

from edl_horovod.cluster.client import Cluster
from tests.kube import certificates, mpijobs, real
from tests.kube.apiserver.admission import MASTERS, User
from tests.kube.apiserver.server import ApiServer
from tests.kube.lab import Lab, connect

ROOT = Path(__file__).resolve().parents[2]
CRD = Path(os.environ.get("EDL_MPIJOB_CRD") or ROOT.parent / "shared/reference/mpijobs.crd.yaml")
"""The operator's own definition; it is not a part of this repository, and may be missing."""
ADMIN, WATCHER, STRANGER = "admin-token", "watcher-token", "stranger-token"
RBAC = "rbac.authorization.k8s.io"
TOKENS = {
    ADMIN: ("admin", MASTERS),
    WATCHER: ("watcher", "people"),
    STRANGER: ("stranger", "people"),
}


@dataclass(frozen=True)
class Backend:
    """A server that all contract tests run against."""

    url: str
    ca_file: Path | None

    def kubeconfig(self, path: Path, *, token: str, namespace: str = "default") -> Path:
        return write_kubeconfig(
            path, self.url, {"token": token}, namespace=namespace, ca_file=self.ca_file
        )


def write_kubeconfig(
    path: Path, url: str, user: dict, *, namespace: str = "default", ca_file: Path | None = None
) -> Path:
    cluster = {"server": url}
    if ca_file is not None:
        cluster["certificate-authority"] = str(ca_file)
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
        "contexts": [
            {"name": "test", "context": {"cluster": "here", "user": "me", "namespace": namespace}}
        ],
    }
    path.write_text(yaml.safe_dump(kubeconfig))
    return path


@pytest.fixture(scope="session")
def backend(tmp_path_factory):
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folder = tmp_path_factory.mktemp("apiserver")
        with real.server(Path(assets), folder, TOKENS) as url:
            real_backend = Backend(url, folder / "ca.crt")
            crd = yaml.safe_load(CRD.read_text()) if CRD.is_file() else mpijobs.definition()
            real.install_crd(_api_client(real_backend), crd)
            yield real_backend
        return
    with ApiServer() as server:
        add_tokens(server)
        yield Backend(server.url, None)


@pytest.fixture
def server():
    """Our own, for what only it can be made to do."""
    with ApiServer() as ours:
        add_tokens(ours)
        yield ours


def add_tokens(server: ApiServer) -> None:
    server.tokens.update({token: User(name, (group,)) for token, (name, group) in TOKENS.items()})


@pytest.fixture
def admin(backend):
    """The client library itself, which may do everything."""
    with _api_client(backend) as client:
        yield client


@pytest.fixture
def namespace(admin):
    name = f"test-{uuid.uuid4().hex[:8]}"
    k8s.CoreV1Api(admin).create_namespace({"metadata": {"name": name}})
    return name


@pytest.fixture
def cluster_of(backend, namespace, tmp_path):
    """Our facade, in a fresh namespace, for whoever has a token."""
    opened: list[Cluster] = []

    def make(token: str, place: str = namespace) -> Cluster:
        path = backend.kubeconfig(tmp_path / f"{token}.{place}", token=token, namespace=place)
        opened.append(connect(path, place))
        return opened[-1]

    yield make
    for cluster in opened:
        cluster.close()


@pytest.fixture
def cluster(cluster_of):
    return cluster_of(ADMIN)


@pytest.fixture
def lab(server, tmp_path, monkeypatch):
    """A namespace of our own server, to which the verbs find their way."""
    path = write_kubeconfig(tmp_path / "config", server.url, {"token": ADMIN})
    monkeypatch.setenv("KUBECONFIG", str(path))
    lab = Lab(server, path)
    yield lab
    lab.cluster.close()


@pytest.fixture
def bare_server(tmp_path, monkeypatch):
    """Our own without MPIJobs, to which the verbs find their way; the path of its kubeconfig."""
    with ApiServer(has_mpijobs=False) as bare:
        path = write_kubeconfig(tmp_path / "bare", bare.url, {"token": ADMIN})
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield path


@pytest.fixture
def stranger(lab, tmp_path, monkeypatch):
    """Let the verbs come to the lab as somebody without rights."""
    path = write_kubeconfig(tmp_path / "stranger", lab.server.url, {"token": STRANGER})
    monkeypatch.setenv("KUBECONFIG", str(path))


@pytest.fixture
def use(backend, namespace, tmp_path, monkeypatch):
    """Let the verbs come to the backend as somebody, at first as the administrator."""

    def write(token):
        path = backend.kubeconfig(tmp_path / token, token=token, namespace=namespace)
        monkeypatch.setenv("KUBECONFIG", str(path))

    write(ADMIN)
    return write


@pytest.fixture
def quota(admin, namespace):
    """Give the namespace a quota, as its controller, which is no part of an API server, would."""

    def make(hard, used):
        core = k8s.CoreV1Api(admin)
        wanted = {"metadata": {"name": "few"}, "spec": {"hard": hard}}
        core.create_namespaced_resource_quota(namespace, wanted)
        status = {"status": {"hard": hard, "used": used}}
        core.patch_namespaced_resource_quota_status("few", namespace, status)

    return make


@pytest.fixture
def tls_folder(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    certificates.make(folder)
    return folder


def _api_client(backend: Backend) -> k8s.ApiClient:
    configuration = k8s.Configuration()
    configuration.host = backend.url
    configuration.api_key["BearerToken"] = f"Bearer {ADMIN}"
    if backend.ca_file is not None:
        configuration.ssl_ca_cert = str(backend.ca_file)
    return k8s.ApiClient(configuration)


def pod(name: str, *, labels: dict | None = None, node: str = "node-1") -> dict:
    """A pod that a scheduler has placed: nothing else would make its deletion wait for its end."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "example.org/image:1"}],
        },
    }


def rule(group: str, resources: str, verbs: str) -> dict:
    """What a Role allows: resources and verbs are words of a text."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


def rbac(kind: str, name: str, **fields) -> dict:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name}, **fields}


def role(name: str, rules: list[dict]) -> dict:
    return rbac("Role", name, rules=rules)


def binding(name: str, role_name: str, subject: dict) -> dict:
    reference = {"apiGroup": RBAC, "kind": "Role", "name": role_name}
    return rbac("RoleBinding", name, roleRef=reference, subjects=[subject])


def allow(cluster: Cluster, name: str, rules: list[dict], *, subject: dict | None = None) -> None:
    """Make a Role, and bind it to a subject, which is by default the user `stranger`."""
    stranger_user = {"apiGroup": RBAC, "kind": "User", "name": "stranger"}
    cluster.create(role(name, rules))
    cluster.create(binding(name, name, subject or stranger_user))


def config_map(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def mpijob(name: str, **spec) -> dict:
    template = {"spec": {"containers": [{"name": "main", "image": "example.org/image:1"}]}}
    replicas = {"replicas": 1, "template": template}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {"mpiReplicaSpecs": {"Launcher": replicas, "Worker": replicas}, **spec},
    }
