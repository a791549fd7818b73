"""Become a container: `python container.py SPEC`, in a network namespace and a mount namespace.

A file system of its own, from parts of this machine's and the pod's volumes; then the command takes
this process over, so its number, its signals and its exit code are the container's.
"""

import ctypes
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
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source, target):
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=True)
    mount("--rbind", source, target)


def kernel(function, *arguments):
    status = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments)
    assert status == 0, f"{function}{arguments}: {os.strerror(ctypes.get_errno())}"


def allow_writing(path, *, is_allowed):
    """Let what is mounted at a path, and below it, be written or not."""
    attributes = (0, MOUNT_ATTR_RDONLY) if is_allowed else (MOUNT_ATTR_RDONLY, 0)
    change = (ctypes.c_uint64 * 4)(*attributes, 0, 0)
    kernel("syscall", MOUNT_SETATTR, AT_FDCWD, str(path).encode(), AT_RECURSIVE, change, 32)


def give_up_rights(group):
    """Become the image's user without any capability, and without a way to gain one."""
    for capability in range(int(LAST_CAPABILITY.read_text()) + 1):
        kernel("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
    kernel("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([group])
    os.setgid(USER)
    os.setuid(USER)


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
    os.umask(0o022)  # A container's, whatever that of the tests is.
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
    binds = [(Path(source), root / target.lstrip("/"), w) for source, target, w in spec["binds"]]
    # A volume may lie in another one, whatever their order.
    binds.sort(key=lambda bind: len(bind[1].parts))
    for source, target, _ in binds:
        bind(source, target)
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "dev/shm")
    if spec["is_read_only"]:
        allow_writing(root, is_allowed=False)
        allow_writing(root / "dev/shm", is_allowed=True)
        for _, target, is_writable in binds:
            allow_writing(target, is_allowed=is_writable)
    os.chroot(root)
    os.chdir(HOME)
    socket.sethostname(spec["hostname"])
    give_up_rights(spec["group"])
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


if __name__ == "__main__":
    main()
