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
            realm = f'realm="http://{self.registry.address}/token",service="x"'
            self.answer(401, **{"WWW-Authenticate": f"{self.registry.scheme} {realm}"})
        else:
            location = f"{self.path}{len(self.registry.opened)}?state=1"
            self.registry.opened.append(location)
            self.answer(202, Location=location)

    def do_DELETE(self):
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


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
@pytest.mark.parametrize("password", ["", "wrong"])
def test_without_the_right_login_it_says_to_log_in(scheme, password, log_in):
    with serving(scheme) as registry:
        if password:
            log_in(registry.address, password)
        found, last = levels(registry.address)
    assert found == ["OK", "FAIL"]
    assert "docker login" in last.fix


def test_a_registry_that_is_not_there_is_told():
    address = f"127.0.0.1:{free_port()}"
    found, last = levels(address)
    assert found == ["FAIL"]
    assert address in last.text


def test_without_a_repository_nothing_is_asked():
    (finding,) = check_registry(Scope(Programs()))
    assert finding.level == "NONE"
    assert "--image-repository" in finding.text
