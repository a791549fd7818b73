"""A real etcd and kube-apiserver, from the folder that KUBEBUILDER_ASSETS names."""

import contextlib
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from kubernetes import client as k8s

from tests import logs
from tests.kube import certificates
from tests.ports import free_ports
from tests.waiting import end, wait_until

START_SECONDS = 90.0
END_SECONDS = 20.0


@contextlib.contextmanager
def server(assets: Path, folder: Path, tokens: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Run both on loopback; yields the URL. `folder` gets logs, data and `ca.crt`.

    Args:
        assets: Holds the binaries `etcd` and `kube-apiserver`.
        folder: Empty.
        tokens: Token to user and group.
    """
    certificates.make(folder)
    lines = [f'{token},{user},{user},"{group}"\n' for token, (user, group) in tokens.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    etcd_port, peer_port, port = free_ports(3)
    etcd_url, url = f"http://127.0.0.1:{etcd_port}", f"https://127.0.0.1:{port}"
    etcd = [
        assets / "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    ]
    apiserver = [
        assets / "kube-apiserver",
        f"--etcd-servers={etcd_url}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--cert-dir={folder}",
        f"--tls-cert-file={folder / 'server.crt'}",
        f"--tls-private-key-file={folder / 'server.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--token-auth-file={folder / 'tokens.csv'}",
        f"--service-account-key-file={folder / 'tokens.key'}",
        f"--service-account-signing-key-file={folder / 'tokens.key'}",
        f"--service-account-issuer={url}",
        "--authorization-mode=RBAC",
        # Nobody is there who would make the service accounts that this one waits for.
        "--disable-admission-plugins=ServiceAccount",
    ]
    with _process(etcd, folder / "etcd.log") as child:
        _age(etcd_url, folder, child)
        with _process(apiserver, folder / "apiserver.log") as child:
            trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            _wait_for(f"{url}/readyz", folder, child, context=trust)
            yield url


@contextlib.contextmanager
def _process(command: list, log_path: Path) -> Iterator[subprocess.Popen]:
    with log_path.open("wb") as output:
        child = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output)
    try:
        yield child
    finally:
        end(child, seconds=END_SECONDS)


def _age(etcd_url: str, folder: Path, child: subprocess.Popen) -> None:
    """Write something: of versions from before the API server it cannot tell any more."""
    _wait_for(f"{etcd_url}/health", folder, child)
    request = urllib.request.Request(f"{etcd_url}/v3/kv/put", data=b'{"key": "YQ==", "value": ""}')
    for _ in range(10):
        urllib.request.urlopen(request, timeout=5).close()


def _wait_for(
    url: str, folder: Path, child: subprocess.Popen, *, context: ssl.SSLContext | None = None
) -> None:
    def describe() -> str:
        return logs.page(folder.glob("*.log"))

    def answers() -> bool:
        assert child.poll() is None, describe()
        try:
            with urllib.request.urlopen(url, timeout=5, context=context):
                return True
        except OSError:  # HTTPError is one too.
            return False

    wait_until(answers, f"an answer of {url}", seconds=START_SECONDS, describe=describe)


def install_crd(client: k8s.ApiClient, definition: dict) -> None:
    """Make the server know MPIJobs."""
    extensions = k8s.ApiextensionsV1Api(client)
    extensions.create_custom_resource_definition(definition)
    name = definition["metadata"]["name"]

    def is_established() -> bool:
        status = extensions.read_custom_resource_definition(name).status
        conditions = (status and status.conditions) or []
        return ("Established", "True") in [(entry.type, entry.status) for entry in conditions]

    wait_until(is_established, name, seconds=START_SECONDS)
