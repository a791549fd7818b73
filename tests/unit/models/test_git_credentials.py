"""A user and a password in the URL of a model zoo: Git gets them, and nobody else does."""

import base64
import contextlib
import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.errors import ConfigError
from edl_horovod.models.git_zoo import ensure_local, parse
from tests.kube import certificates

TOKEN = "s3cr3t-t0ken"
PASSWORD = f"{TOKEN}/@"
TYPED = f"{TOKEN}%2F%40"


@dataclass
class PrivateServer:
    """A repository behind a password, over https."""

    port: int = 0
    commands: list[str] = field(default_factory=list)
    """Of all processes of the machine while a request waited for its answer."""
    headers: list[dict[str, str]] = field(default_factory=list)

    def url(self, user: str, path: str = ".git") -> str:
        return f"git+https://{user}127.0.0.1:{self.port}/{path}@main"

    def logins(self) -> set[str]:
        logins = [sent["authorization"] for sent in self.headers if "authorization" in sent]
        return {base64.b64decode(text.partition(" ")[2]).decode() for text in logins}


def commands() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # It has ended.
            yield process.read_bytes().replace(b"\0", b" ").decode(errors="replace")


class PrivateHandler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, note: PrivateServer, **keywords):
        self.note = note
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        self.note.commands += commands()
        self.note.headers.append({name.lower(): value for name, value in self.headers.items()})
        login = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        if self.headers["Authorization"] == f"Basic {login}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="zoos"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    repository, cert = tmp_path / "models", tmp_path / "cert"
    cert.mkdir()
    certificates.make(cert)
    monkeypatch.setenv("GIT_SSL_CAINFO", str(cert / "ca.crt"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    repository.mkdir()
    (repository / "mnist.py").write_text("x = 1\n")
    me = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*me, "commit", "-q", "-m", "a"],
        ["update-server-info"],
    ):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    note = PrivateServer()
    handler = functools.partial(PrivateHandler, directory=str(repository), note=note)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        context = certificates.server_context(cert)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        note.port = listening.server_port
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield note
        finally:
            listening.shutdown()
            thread.join()


def test_no_process_list_shows_the_password_of_a_zoo(server):
    zoo = ensure_local(server.url(f"me:{TYPED}@"))

    assert (zoo.path / "mnist.py").read_text() == "x = 1\n"
    assert f"me:{PASSWORD}" in server.logins()
    for verb in ("ls-remote", "fetch", "remote-https"):
        assert any(f"{verb} " in command for command in server.commands), verb
    assert not [command for command in server.commands if TOKEN in command]


def test_a_password_is_written_nowhere(server, tmp_path, caplog):
    helper = f"[credential]\nhelper = store --file={tmp_path}/stored\n"
    (tmp_path / "gitconfig").write_text(helper)
    with caplog.at_level(0):
        zoo = ensure_local(server.url(f"me:{TYPED}@"))

    held = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in held if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in f"{zoo} {caplog.text}"


def test_a_wrong_password_is_told_without_it(server):
    with pytest.raises(ConfigError, match="Authentication failed") as error:
        ensure_local(server.url(f"me:{TOKEN}-of-yesterday@"))
    assert TOKEN not in str(error.value)
    assert server.logins() == {f"me:{TOKEN}-of-yesterday"}


def test_a_helper_of_the_users_own_gives_the_password_of_a_user(server, tmp_path):
    shell = f"!f() {{ echo username=me; echo 'password={PASSWORD}'; }}; f"
    (tmp_path / "gitconfig").write_text(f'[credential]\nhelper = "{shell}"\n')
    assert ensure_local(server.url("me@")).commit
    assert f"me:{PASSWORD}" in server.logins()


def test_what_the_environment_tells_git_beside_it_still_counts(server, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.extraHeader")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "X-Team: vision")
    assert ensure_local(server.url(f"me:{TYPED}@")).commit
    assert {sent.get("x-team") for sent in server.headers} == {"vision"}


@pytest.mark.parametrize(
    "url",
    [
        "git+ssh://git:pw@host/a@main",
        "git+file://me:pw@host/a@main",
        f"git://pw@host/a@{'ab' * 20}",
    ],
)
def test_a_password_that_git_would_not_use_is_refused(url):
    with pytest.raises(ConfigError, match="Only https") as error:
        parse(url)
    assert "pw" not in str(error.value)


def test_a_password_shows_in_no_form_of_a_zoo():
    zoo = parse("git+https://me:secret@host:81/a@main")
    assert zoo is not None
    assert str(zoo) == "git+https://host:81/a@main"
    assert "secret" not in repr(zoo)
    for broken in ("git+http://me:secret@host/a@main", "git+https://me:secret@[::1/a@main"):
        with pytest.raises(ConfigError) as error:
            parse(broken)
        assert "secret" not in str(error.value)


def test_a_password_is_in_no_configuration_that_is_written():
    typed = f"model_zoo=git+https://me:{TOKEN}@host/a@main"
    config = compose("train", [typed, "model_def=m", "data=d", "output=o"])
    assert TOKEN in config.model_zoo
    assert "://host/a@main" in resolved.to_yaml(config)
    assert TOKEN not in resolved.to_yaml(config)
