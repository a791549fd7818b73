"""From where the set-up installs: uv itself, against an index and folders of the test."""

import contextlib
import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.web_server import serving

SCRIPT = Path(__file__).parents[2] / "locks" / "install.py"


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
    with serving(handler) as url:
        yield url


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with pip, as the set-up makes it."""
    folder = tmp_path_factory.mktemp("made") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    return folder


class SetUp:
    """A machine that reaches a mirror of the public index and no index of PyTorch."""

    def __init__(self, folder, mirror, environment):
        self.folder, self.mirror, self.environment = folder, mirror, environment
        self.locks = folder / "locks"
        self.cpu, self.public = folder / "cpu", folder / "mirror" / "torch"
        self.locks.mkdir()
        shutil.copy(SCRIPT, self.locks)
        (folder / "mirror").mkdir()
        public = write_wheel(self.public, "2.13.0")
        self._lock("torch.txt", "2.13.0+cpu", write_wheel(self.cpu, "2.13.0+cpu"))
        self._lock("torch-cuda.txt", "2.13.0", public)

    def _lock(self, name, version, digest):
        (self.locks / name).write_text(f"torch=={version} --hash=sha256:{digest}\n")

    def run(self, **variables):
        settings = ("PIP_", "UV_")
        others = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
        environment = {
            **others,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.mirror,
            "UV_CACHE_DIR": str(self.folder / "cache"),
            # Nothing listens at the port that Linux reserves: PyTorch's own index is out of reach.
            "HTTPS_PROXY": "http://127.0.0.1:1",
            "TORCH_LINKS": "",
            **variables,
        }
        command = [str(self.environment / "bin" / "python"), str(self.locks / SCRIPT.name), "torch"]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def installed(self):
        return [path.name for path in sorted(self.environment.rglob("torch-*.dist-info"))]


@pytest.fixture
def set_up(tmp_path, environment):
    with serve(tmp_path / "mirror") as mirror:
        yield SetUp(tmp_path, mirror, environment)
    for path in [*environment.rglob("torch-*.dist-info"), *environment.rglob("torch.py")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.long
@pytest.mark.parametrize("variable", ["PIP_FIND_LINKS", "TORCH_LINKS"])
def test_the_build_for_cpus_is_taken_where_pip_or_the_user_says_it_is(set_up, variable):
    run = set_up.run(**{variable: str(set_up.cpu)})

    assert (run.returncode, set_up.installed()) == (0, ["torch-2.13.0+cpu.dist-info"]), run.stderr
    # Of the user's own folder it is said.
    assert not run.stderr if variable == "PIP_FIND_LINKS" else str(set_up.cpu) in run.stdout


def test_the_public_build_is_taken_where_no_other_can_be_had(set_up):
    run = set_up.run()

    assert (run.returncode, set_up.installed()) == (0, ["torch-2.13.0.dist-info"]), run.stderr
    assert "=FOLDER" in run.stdout
    assert not run.stderr


def test_a_folder_without_the_build_is_an_error_and_nothing_else_is_taken(set_up, tmp_path):
    run = set_up.run(TORCH_LINKS=str(tmp_path / "nowhere"))

    assert (run.returncode, set_up.installed()) == (1, [])
    assert f"TORCH_LINKS={tmp_path / 'nowhere'}" in run.stderr


def test_a_mirror_in_a_file_of_pips_settings_is_used(set_up, tmp_path):
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {set_up.mirror}\nextra-index-url = file:///nowhere/simple\n"
    )

    run = set_up.run(PIP_CONFIG_FILE=str(tmp_path / "pip.conf"), PIP_INDEX_URL="")

    assert (run.returncode, set_up.installed()) == (0, ["torch-2.13.0.dist-info"]), run.stderr
