"""A base image for where none can be pulled: this machine's Python with pip, and a shell."""

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

_NEEDLESS = re.compile(
    r"/(__pycache__|tests?|idlelib|tkinter|turtledemo|lib2to3|ensurepip|site-packages"
    r"|dist-packages|config-3[^/]*|EXTERNALLY-MANAGED)(/|$)"
)


def write(path):
    """Write the tar that `ADD` turns into the image's files."""
    import pip

    program = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    pip_folder, packages = Path(pip.__file__).parent, _packages(program)
    with tarfile.open(path, "w") as tar:
        tar.add(program, arcname=_inside(program), filter=_ours)
        tar.add(library, arcname=_inside(library), filter=_without_needless)
        for file in pip_folder.rglob("*.py*"):
            if "__pycache__" not in file.parts and file.is_file():
                name = f"{_inside(packages)}/pip/{file.relative_to(pip_folder)}"
                tar.add(file, arcname=name, filter=_ours)
        shell = Path(os.path.realpath("/bin/sh"))
        tar.add(shell, arcname="bin/sh", filter=_ours)
        for file in sorted(_libraries(program, shell, *library.glob("lib-dynload/*.so"))):
            tar.add(os.path.realpath(file), arcname=_inside(file), filter=_ours)
        _link(tar, "usr/local/bin/python", str(program))
        _folder(tar, "tmp", 0o1777)
        _text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nedl:x:1000:1000::/:/bin/sh\n")
        _text(tar, "etc/nsswitch.conf", "hosts: files\n")


def _packages(program):
    """Where this Python looks for packages; Debian's own has another folder than others."""
    command = [program, "-I", "-c", "import site; print(site.getsitepackages()[0])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _inside(path):
    return str(path).lstrip("/")


def _ours(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _without_needless(entry):
    return None if _NEEDLESS.search(f"/{entry.name}") else _ours(entry)


def _libraries(*programs):
    """What programs are linked with, and the linker."""
    libraries = set()
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        libraries |= set(re.findall(r"(?:=> )?(/\S+) \(0x", listed))
    return libraries


def _link(tar, name, target):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _folder(tar, name, mode):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _text(tar, name, text):
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    tar.addfile(entry, io.BytesIO(text.encode()))
