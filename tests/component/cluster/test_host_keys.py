"""The launcher's ssh, as docker/ssh sets it up: it speaks to pods of its own job alone."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from edl_horovod.cluster import pods
from tests.netns import ssh
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(60)

DOCKER = Path(__file__).parents[3] / "docker" / "ssh"
HOROVODRUN = ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no"]
"""What horovodrun calls ssh with."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The folder that mpi-operator mounts, with the job's key, and in it another host's."""
    if reason := ssh.what_is_missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("keys")
    for name in ("id_rsa", "of_another_host"):
        kind = ["-t", "ecdsa", "-b", "521", "-m", "PEM"]
        command = ["ssh-keygen", "-q", *kind, "-N", "", "-C", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    return folder


def settings(name, folder, port):
    """A file of docker/ssh, with the paths and the port of this test."""
    text = (DOCKER / name).read_text().replace(pods.SSH_KEYS, str(folder))
    text = text.replace(str(pods.SSH_PORT), str(port))
    return text.replace("PermitRootLogin no", "PermitRootLogin yes")  # For tests by root.


@pytest.fixture
def connect(keys, tmp_path):
    """Start an `sshd` with one of the keys; returns a call of the image's `ssh` to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if os.geteuid() == 0:
        ssh.PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    client, program, log = tmp_path / "ssh_config", tmp_path / "ssh", tmp_path / "sshd.log"
    client.write_text(settings("ssh_config", keys, port) + f"IdentityFile {keys}/id_rsa\n")
    program.write_text((DOCKER / "ssh").read_text().replace('"$@"', f'-F {client} "$@"'))
    program.chmod(0o755)
    started = []

    def start(host_key):
        server = tmp_path / "sshd_config"
        text = settings("sshd_config", keys, port).replace(f"{keys}/id_rsa", f"{keys}/{host_key}")
        server.write_text(f"{text}\nListenAddress 127.0.0.1\n")
        command = [ssh.locate("sshd"), "-De", "-f", str(server)]
        with log.open("wb") as stream:
            started.append(subprocess.Popen(command, stdout=stream, stderr=stream))
        wait_until(lambda: "listening" in log.read_text(), "sshd", describe=log.read_text)

        def call(*options):
            command = [str(program), *options, "127.0.0.1", "echo", "reached"]
            return subprocess.run(command, capture_output=True, text=True, timeout=30)

        return call

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("options", [[], HOROVODRUN], ids=["mpirun", "horovodrun"])
@pytest.mark.parametrize(
    ("key", "exit_code", "printed", "complaint"),
    [("id_rsa", 0, "reached\n", ""), ("of_another_host", 255, "", "Host key")],
)
def test_a_host_with_the_jobs_key_alone_is_reached(
    connect, key, exit_code, printed, complaint, options
):
    done = connect(key)(*options)

    assert (done.returncode, done.stdout) == (exit_code, printed), done.stderr
    assert complaint in done.stderr
