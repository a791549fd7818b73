"""Skips where nothing can be built; makes a builder, registries, a base image, a package index."""

import contextlib
import functools
import http.server
import tempfile
import zipfile
from pathlib import Path

import pytest

import docker
from tests.images import rootfs, servers
from tests.ports import free_port
from tests.web_server import serving

BASE = """FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/bin
USER 1000
"""


@pytest.fixture(scope="session")
def folder():
    """For everything that lives as long as the tests."""
    if reason := servers.what_is_missing():
        pytest.skip(reason)
    path = Path(tempfile.mkdtemp(prefix="edl-images-"))
    yield path
    servers.remove(path)


@pytest.fixture(scope="session")
def registry(folder):
    """A registry that takes everything."""
    with contextlib.closing(servers.Registry(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def guarded(folder):
    """A registry that wants a login."""
    with contextlib.closing(servers.Registry(folder, has_login=True)) as server:
        yield server


@pytest.fixture(scope="session")
def nobody(folder):
    """An address where no registry is."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def podman(folder, registry, guarded, nobody):
    """A builder."""
    addresses = (registry.address, guarded.address, nobody)
    with contextlib.closing(servers.Podman(folder, insecure=addresses)) as server:
        yield server


@pytest.fixture(scope="session")
def base(folder, registry, podman):
    """A base image in the registry; it has Python and pip, and its user has no rights."""
    context = folder / "base"
    context.mkdir()
    rootfs.write(context / "rootfs.tar")
    (context / "Dockerfile").write_text(BASE)
    name = f"{registry.address}/base:1"
    podman.run("build", "--isolation", "chroot", "-t", name, str(context))
    podman.run("push", name)
    return name


@pytest.fixture(scope="session")
def index(folder):
    """The address of a package index on loopback that has `edl-probe` 1.0."""
    page = folder / "index" / "simple" / "edl-probe"
    page.mkdir(parents=True)
    name = "edl_probe-1.0-py3-none-any.whl"
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with zipfile.ZipFile(page / name, "w") as wheel:
        meta = "edl_probe-1.0.dist-info"
        wheel.writestr("edl_probe.py", "ANSWER = 42\n")
        wheel.writestr(f"{meta}/METADATA", "Metadata-Version: 2.1\nName: edl-probe\nVersion: 1.0\n")
        wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{meta}/RECORD", "")
    handler = functools.partial(_Quiet, directory=str(folder / "index"))
    with serving(handler) as url:
        yield f"{url}/simple/"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def builder(podman, monkeypatch, tmp_path):
    """Our code meets this builder, and no login of whoever runs the tests."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{podman.socket}")
    (tmp_path / "docker").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    with contextlib.closing(docker.DockerClient(base_url=f"unix://{podman.socket}")) as client:
        yield client


@pytest.fixture
def zoo(tmp_path, index):
    """A model zoo that needs a package."""
    path = tmp_path / "zoo"
    (path / "deep").mkdir(parents=True)
    (path / "requirements.txt").write_text(f"--index-url {index}\nedl-probe==1.0\n")
    (path / "model.py").write_text("VERSION = 1\n")
    (path / "deep" / "more.py").write_text("import edl_probe\n")
    (path / ".git").mkdir()
    (path / ".git" / "config").write_text("url = https://user:password@host/zoo\n")
    return path
