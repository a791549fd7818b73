"""`edl doctor registry`: reached, refused and taken, without an upload."""

import base64
import contextlib
import http.server
import json
import threading
from dataclasses import dataclass, field

import pytest

from edl_horovod.health import Programs, Scope
from edl_horovod.image.health import check_registry
from tests.ports import free_port

LOGIN = f"Basic {base64.b64encode(b'trainer:sesame').decode()}"


@dataclass
class Registry:
    """A registry on loopback, as the distribution specification has it."""

    scheme: str = ""
    """How it wants to be asked: nothing, Basic or Bearer."""
    address: str = ""
    refusal: int = 0
    """The status with which it refuses each upload; 0 if it takes them."""
    location: str = ""
    """Where else it says that the upload is."""
    realm: str = ""
    """Where it says that tokens are; empty for itself."""
    cancelled: list[str | None] = field(default_factory=list)
    """The login in each request to cancel an upload."""
    opened: list[str] = field(default_factory=list)
    uploaded: int = 0


class Handler(http.server.BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self):
        if self.path.startswith("/token?"):
            is_known = self.headers["Authorization"] == LOGIN
            self.answer(200 if is_known else 401, json.dumps({"token": "pass"}).encode())
        else:
            self.answer(200 if not self.registry.scheme else 401)

    def do_POST(self):
        self.registry.uploaded += int(self.headers["Content-Length"] or 0)
        wanted = {"": None, "Basic": LOGIN, "Bearer": "Bearer pass"}[self.registry.scheme]
        if wanted and self.headers["Authorization"] != wanted:
            url = self.registry.realm or f"http://{self.registry.address}/token"
            realm = f'realm="{url}",service="x"'
            self.answer(401, **{"WWW-Authenticate": f"{self.registry.scheme} {realm}"})
        elif self.registry.refusal:
            self.answer(self.registry.refusal)
        elif self.registry.location:
            self.answer(202, Location=self.registry.location)
        else:
            location = f"{self.path}{len(self.registry.opened)}?state=1"
            self.registry.opened.append(location)
            self.answer(202, Location=location)

    def do_DELETE(self):
        self.registry.cancelled.append(self.headers["Authorization"])
        if self.path in self.registry.opened:
            self.registry.opened.remove(self.path)
        self.answer(204)

    def answer(self, status, content=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(scheme):
    registry = Registry(scheme)
    handler = type("OwnHandler", (Handler,), {"registry": registry})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield registry
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def log_in(tmp_path, monkeypatch):
    """Nobody has logged in; gives a function that does, as `docker login` leaves it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))

    def write(address, password="sesame"):
        auth = base64.b64encode(f"trainer:{password}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))

    return write


def levels(address):
    findings = list(check_registry(Scope(Programs(), image_repository=f"{address}/team/zoo")))
    return [finding.level for finding in findings], findings[-1]


@pytest.mark.parametrize("scheme", ["", "Basic", "Bearer"])
def test_a_repository_that_takes_pushes_is_left_as_it_was(scheme, log_in):
    with serving(scheme) as registry:
        if scheme:
            log_in(registry.address)
        assert levels(registry.address)[0] == ["OK", "OK"]
        assert (registry.opened, registry.uploaded) == ([], 0)


@pytest.mark.parametrize(
    ("scheme", "password"), [("Basic", ""), ("Bearer", ""), ("Basic", "wrong"), ("Bearer", "wrong")]
)
def test_without_the_right_login_it_says_to_log_in(scheme, password, log_in):
    with serving(scheme) as registry:
        if password:
            log_in(registry.address, password)
        all_levels, last = levels(registry.address)
    assert all_levels == ["OK", "FAIL"]
    assert "docker login" in last.fix


@pytest.mark.parametrize(("status", "is_login"), [(404, False), (503, False), (403, True)])
def test_a_refusal_is_told_with_its_status_and_perhaps_the_login(status, is_login, log_in):
    with serving("Basic" if is_login else "") as registry:
        log_in(registry.address)
        registry.refusal = status
        all_levels, last = levels(registry.address)
    assert all_levels == ["OK", "FAIL"]
    assert f"HTTP {status}" in last.text
    assert ("docker login" in last.fix) == is_login


@pytest.mark.parametrize("is_own", [True, False])
def test_only_the_registry_itself_is_sent_the_login(is_own, log_in):
    with serving("Basic") as registry, serving("") as other:
        log_in(registry.address)
        place = registry if is_own else other
        registry.location = f"http://{place.address}/upload"
        assert levels(registry.address)[0] == ["OK", "OK"]
        assert place.cancelled == [LOGIN if is_own else None]


def test_the_host_of_tokens_is_private(log_in):
    with serving("Bearer") as registry:
        log_in(registry.address)
        registry.realm = "https://tokens.corp.invalid/token"
        _, last = levels(registry.address)
    assert last.level == "FAIL"
    host = "tokens.corp.invalid"
    assert host in last.text
    assert host in last.private


def test_a_registry_that_is_not_there_is_told():
    address = f"127.0.0.1:{free_port()}"
    all_levels, last = levels(address)
    assert all_levels == ["FAIL"]
    assert address in last.text


def test_without_a_repository_nothing_is_asked():
    (finding,) = check_registry(Scope(Programs()))
    assert finding.level == "NONE"
    assert "--image-repository" in finding.text
