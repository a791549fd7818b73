"""Become a container: `python container.py SPEC`, in a network namespace and a mount namespace.

A file system of its own, from parts of this machine's and the pod's volumes; then the command takes
this process over, so its number, its signals and its exit code are the container's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

OWN = ("tmp", "run", "edl", "edl-secret", "data", "mnt", "lost+found")
"""Not of the machine."""


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source, target):
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=True)
    mount("--rbind", source, target)


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
    for name in ("tmp", "run"):
        (root / name).mkdir()
    for source, target in spec["binds"]:
        bind(Path(source), root / target.lstrip("/"))
    os.chroot(root)
    os.chdir("/")
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


if __name__ == "__main__":
    main()
