"""Become a container: `python container.py SPEC`, in a network namespace and a mount namespace.

A file system of its own, from parts of this machine's and the pod's volumes; then the command takes
this process over, so its number, its signals and its exit code are the container's.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

OWN = ["tmp", "run", "etc", "home", "root", "opt", "edl", "edl-secret", "data", "mnt", "lost+found"]
"""Not of the machine."""
USER, HOME = 1000, "/home/edl"
"""Of docker/Dockerfile."""


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source, target):
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=True)
    mount("--rbind", source, target)


def make_image(root, repository):
    """Make what docker/Dockerfile makes of a Debian."""
    for name in ("tmp", "run", "home", "home/edl"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home/edl", USER, USER)
    shutil.copytree("/etc", root / "etc", symlinks=True)
    users = Path("/etc/passwd").read_text().splitlines()
    users = [line for line in users if line.split(":")[2] != str(USER)]
    users.append(f"edl:x:{USER}:{USER}::{HOME}:/bin/bash")
    (root / "etc/passwd").write_text("\n".join(users) + "\n")
    ssh = repository / "docker" / "ssh"
    for name in ("etc/ssh/ssh_config.d", "etc/edl", "opt/edl/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(ssh / "ssh", root / "opt/edl/bin/ssh")
    shutil.copy(ssh / "ssh_config", root / "etc/ssh/ssh_config.d/edl.conf")
    # There our package is installed; here it is where the tests are.
    server = (ssh / "sshd_config").read_text() + f"SetEnv PYTHONPATH={repository}\n"
    (root / "etc/edl/sshd_config").write_text(server)


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    root = Path(spec["root"])
    mount("-t", "tmpfs", "tmpfs", root)
    for entry in Path("/").iterdir():
        if entry.name in OWN:
            continue
        if entry.is_symlink():
            (root / entry.name).symlink_to(os.readlink(entry))
        else:
            bind(entry, root / entry.name)
    make_image(root, Path(spec["repository"]))
    for source, target in spec["binds"]:
        bind(Path(source), root / target.lstrip("/"))
    os.chroot(root)
    os.chdir(HOME)
    socket.sethostname(spec["hostname"])
    os.setgroups([spec["group"]])
    os.setgid(USER)
    os.setuid(USER)
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


if __name__ == "__main__":
    main()
