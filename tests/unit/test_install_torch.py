"""Which build of PyTorch the set-up takes: pip itself, against an index and folders of the test."""

import contextlib
import functools
import hashlib
import http.server
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "locks" / "install_torch.py"


def write_wheel(folder, version):
    """A package of one module that pip takes for PyTorch; returns its hash."""
    folder.mkdir(exist_ok=True)
    path = folder / f"torch-{version}-py3-none-any.whl"
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch.py", f"__version__ = '{version}'\n")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", f"torch.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serve(folder):
    """An index on loopback."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class SetUp:
    """A machine that reaches a mirror of the public index and no index of PyTorch."""

    def __init__(self, folder, mirror):
        self.folder, self.mirror = folder, mirror
        self.locks, self.target = folder / "locks", folder / "target"
        self.cpu, self.public = folder / "cpu", folder / "mirror" / "torch"
        self.locks.mkdir()
        (folder / "mirror").mkdir()
        public = write_wheel(self.public, "2.13.0")
        self._lock("torch.txt", "2.13.0+cpu", write_wheel(self.cpu, "2.13.0+cpu"))
        self._lock("torch-cuda.txt", "2.13.0", public)

    def _lock(self, name, version, digest):
        text = f"# Made by `make lock`: .[torch]\n# 24 packages, 2,901 MB\ntorch=={version}"
        (self.locks / name).write_text(f"{text} --hash=sha256:{digest}\n")

    def run(self, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment = {
            **kept,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.mirror,
            "PIP_TARGET": str(self.target),
            "PIP_NO_CACHE_DIR": "1",
            # Nothing listens at the port that Linux reserves: PyTorch's own index is out of reach.
            "HTTPS_PROXY": "http://127.0.0.1:1",
            "TORCH_LINKS": "",
            **variables,
        }
        command = [sys.executable, str(SCRIPT), str(self.locks)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def installed(self):
        return [path.name for path in sorted(self.target.glob("torch-*.dist-info"))]


@pytest.fixture
def set_up(tmp_path):
    with serve(tmp_path / "mirror") as mirror:
        yield SetUp(tmp_path, mirror)


@pytest.mark.parametrize("variable", ["PIP_FIND_LINKS", "TORCH_LINKS"])
def test_the_build_for_cpus_is_taken_where_pip_or_the_user_says_it_is(set_up, variable):
    run = set_up.run(**{variable: str(set_up.cpu)})

    assert (run.returncode, set_up.installed()) == (0, ["torch-2.13.0+cpu.dist-info"]), run.stderr
    # Of the user's own folder it is said.
    assert not run.stderr if variable == "PIP_FIND_LINKS" else str(set_up.cpu) in run.stdout


def test_the_public_build_and_its_size_are_named_where_no_other_can_be_had(set_up):
    run = set_up.run()

    assert (run.returncode, set_up.installed()) == (0, ["torch-2.13.0.dist-info"]), run.stderr
    assert "2,901 MB" in run.stdout
    assert not run.stderr


def test_a_folder_without_the_build_is_an_error_and_nothing_else_is_taken(set_up, tmp_path):
    run = set_up.run(TORCH_LINKS=str(tmp_path / "nowhere"))

    assert (run.returncode, set_up.installed()) == (1, [])
    assert f"Received: TORCH_LINKS={tmp_path / 'nowhere'}" in run.stderr
