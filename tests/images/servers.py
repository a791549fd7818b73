"""A builder (Podman, at a socket of its own) and registries, all in one folder that is removed."""

import contextlib
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_until

USER, PASSWORD = "trainer", "sesame"
HASH = "$2b$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O"
"""The password hashed by bcrypt: the registry takes no other kind."""

RUNTIME = """#!/bin/sh
exec {crun} --cgroup-manager=disabled "$@"
"""
CONTAINERS = """
[engine]
cgroup_manager = "cgroupfs"
runtime = "plain"
[engine.runtimes]
plain = ["{folder}/runtime"]
[containers]
cgroups = "disabled"
netns = "host"
"""
"""Containers without cgroups: a machine that is itself a container lends none."""


def what_is_missing():
    """Why nothing can be built here, as one sentence; empty where it can."""
    if os.geteuid() != 0:
        return "building images is tried as root (rootless Podman needs subuids and more)"
    tools = {"podman": "podman", "docker-registry": "docker-registry", "crun": "crun"}
    missing = [package for tool, package in tools.items() if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found (Debian's packages)" if missing else ""


class Server:
    """A process with a log, ended with all that it started."""

    def __init__(self, command, folder, name, **variables):
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )

    def wait_until(self, is_up):
        def is_up_now():
            assert self._process.poll() is None, self.log.read_text()
            return is_up()

        wait_until(is_up_now, describe=self.log.read_text)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


class Registry(Server):
    """Debian's docker-registry on loopback."""

    def __init__(self, folder, *, has_login=False):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        name = f"registry-{self.port}"
        self.folder = folder / name
        login = ""
        if has_login:
            (folder / f"{name}.htpasswd").write_text(f"{USER}:{HASH}\n")
            login = f"auth: {{htpasswd: {{realm: test, path: {folder}/{name}.htpasswd}}}}\n"
        config = folder / f"{name}.yml"
        config.write_text(
            "version: 0.1\nlog: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder}/{name}}}}}\n"
            f"http: {{addr: '{self.address}', secret: not-one}}\n{login}"
        )
        super().__init__(["docker-registry", "serve", config], folder, name)
        self.wait_until(self._is_up)

    def _is_up(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False

    def manifest(self, repository, reference):
        """The digest that the registry gives, and the manifest's text."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{repository}/manifests/{reference}",
            headers={
                "Accept": "application/vnd.oci.image.manifest.v1+json, "
                "application/vnd.docker.distribution.manifest.v2+json"
            },
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.headers["Docker-Content-Digest"], answer.read()


class Podman(Server):
    """Podman's service in the manner of Docker, with storage of its own."""

    def __init__(self, folder, insecure):
        self.socket = folder / "podman.sock"
        (folder / "runtime").write_text(RUNTIME.format(crun=shutil.which("crun")))
        (folder / "runtime").chmod(0o755)
        (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder))
        (folder / "registries.conf").write_text(
            "unqualified-search-registries = []\n"
            + "".join(f'[[registry]]\nlocation = "{name}"\ninsecure = true\n' for name in insecure)
        )
        self._variables = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }
        self._podman = ["podman", "--root", folder / "storage", "--runroot", folder / "run"]
        self._podman += ["--storage-driver", self._driver(folder)]
        service = [*self._podman, "system", "service", "--time=0", f"unix://{self.socket}"]
        # crun refuses machines that mix both kinds of cgroups, also where it is to use none: the
        # service sees an empty folder in their place.
        hidden = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
        super().__init__(
            ["unshare", "--mount", "sh", "-c", hidden, "sh", *service],
            folder,
            "podman",
            **self._variables,
        )
        self.wait_until(self.socket.exists)

    def _driver(self, folder):
        """The quick one where this machine's file system has it."""
        tried = folder / "tried"
        command = ["podman", "--root", tried / "storage", "--runroot", tried / "run"]
        done = subprocess.run(
            [*map(str, command), "--storage-driver", "overlay", "info"],
            capture_output=True,
            env={**os.environ, **self._variables},
        )
        return "overlay" if done.returncode == 0 else "vfs"

    def run(self, *arguments):
        """What a command of Podman printed."""
        done = subprocess.run(
            [*map(str, self._podman), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **self._variables},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def remove(folder):
    """Remove a folder with what may still be mounted in it."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", place], check=False)
    shutil.rmtree(folder)
