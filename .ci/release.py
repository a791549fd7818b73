"""Write a release of the last commit: `python .ci/release.py FOLDER`, as `make dist` does.

The folder gets the source archive, the wheel that is built from it, a list of everything that an
installation for CPUs may bring (CycloneDX), and the hashes of these files. Archive and wheel are
built twice, at different places, and must be equal to the last byte: nothing in them follows from
the time, the folder or the umask of who builds them, so anybody can check where a release comes
from.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
LOCKS = ("client", "worker", "tensorflow", "torch")
"""What an installation may bring, beside the packages of Horovod's build."""
DESCRIBE = """
import json
from edl_horovod import __version__
from edl_horovod.horovod_build import recipe
print(json.dumps({
    "version": __version__,
    "requirement": recipe.REQUIREMENT,
    "build_packages": recipe.BUILD_PACKAGES.read_text(),
    "patches": [patch.read_text() for patch in recipe.PATCHES],
}))
"""
UMASK = 0o022


def main(target: Path) -> int:
    """Build twice, compare, and write; returns the exit code."""
    seconds = int(git("log", "-1", "--format=%ct"))
    if git("status", "--porcelain"):
        print("The release is the last commit. Changes that are not committed are left out.")
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        first, second = (build(Path(name, place), seconds) for place in ("first", "second/deeper"))
        hashes = {path.name: sha256(path) for path in first}
        if hashes != (others := {path.name: sha256(path) for path in second}):
            print(f"Two builds differ: {hashes} and {others}", file=sys.stderr)
            return 1
        bom = write_bom(Path(name, "first", "source"), Path(name), seconds)
        target.mkdir(parents=True, exist_ok=True)
        for path in (*first, bom):
            shutil.copyfile(path, target / path.name)
        hashes[bom.name] = sha256(bom)
    text = "".join(f"{digest}  {file}\n" for file, digest in hashes.items())
    (target / "SHA256SUMS").write_text(text)
    print(f"{text}Built twice with equal hashes, and written to {target}.")
    return 0


def git(*words: str) -> str:
    """What git says of this repository."""
    return subprocess.check_output(["git", "-C", str(ROOT), *words], text=True).strip()


def build(folder: Path, seconds: int) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from what it holds; returns both."""
    source, out = folder / "source", folder / "out"
    folder.mkdir(parents=True)
    archive = folder / "commit.tar"
    subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), "HEAD"], check=True
    )
    run_backend("build_sdist", unpack(archive, source), out, seconds)
    (sdist,) = out.glob("*.tar.gz")
    write_plainly(sdist, seconds)
    unpacked = unpack(sdist, folder / "unpacked")
    run_backend("build_wheel", unpacked / sdist.name.removesuffix(".tar.gz"), out, seconds)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack into a new folder, which is returned; all get the same modes of files."""
    with tarfile.open(archive) as members:
        # Debian 12's Python is 3.11.2; `extractall(filter=...)` came with 3.11.4.
        members.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        members.extractall(folder)
    return folder


def run_backend(hook: str, source: Path, out: Path, seconds: int) -> None:
    """Run a build of setuptools, with the commit's time and a fixed umask."""
    subprocess.run(
        [sys.executable, "-c", BUILD, hook, str(out)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds)},
        stdout=subprocess.DEVNULL,
        umask=UMASK,
        check=True,
    )


def write_plainly(archive: Path, seconds: int) -> None:
    """Write a source archive again: sorted, with one time, no owner, and plain modes.

    setuptools does that for wheels alone.
    """
    with tarfile.open(archive) as members:
        files = sorted((file for file in members if file.isfile()), key=lambda file: file.name)
        with (
            archive.with_suffix(".new").open("wb") as stream,
            gzip.GzipFile("", "wb", fileobj=stream, mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as copy,
        ):
            for file in files:
                plain = tarfile.TarInfo(file.name)
                plain.size, plain.mtime = file.size, seconds
                plain.mode = 0o755 if file.mode & 0o100 else 0o644
                copy.addfile(plain, members.extractfile(file))
    archive.with_suffix(".new").replace(archive)


def describe(source: Path) -> dict[str, Any]:
    """The version of a source, and its build of Horovod."""
    # Python looks for modules in the working folder first, and not where edl_horovod is installed.
    return json.loads(subprocess.check_output([sys.executable, "-c", DESCRIBE], cwd=source))


def write_bom(source: Path, scratch: Path, seconds: int) -> Path:
    """Write the list of packages that the locks name, and of Horovod with what patches it."""
    facts = describe(source)
    locks = [(source / "locks" / f"{name}.txt").read_text() for name in LOCKS]
    blocks: dict[str, str] = {}  # Each name and version once.
    for lock in (*locks, facts["build_packages"]):
        for block in re.split(r"\n(?=\S)", lock.strip()):
            if not block.startswith("#"):
                blocks.setdefault(re.split(r"[ ;\\]", block)[0], block)
    requirements = scratch / "locks.txt"
    requirements.write_text("\n".join([*blocks.values(), facts["requirement"]]))
    path = scratch / f"edl_horovod-{facts['version']}.cdx.json"
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements"]
    command += ["--output-reproducible", "--pyproject", str(source / "pyproject.toml")]
    command += ["--mc-type", "library", "--output-file", str(path), str(requirements)]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}, check=True)
    bom = json.loads(path.read_text())
    bom["metadata"]["component"]["version"] = facts["version"]
    for component in bom["components"]:
        component.pop("description")  # The line of the lock, whose hashes are listed anyway.
        if component["name"] == "horovod":
            texts = [{"contentType": "text/x-diff", "content": patch} for patch in facts["patches"]]
            component["pedigree"] = {
                "patches": [{"type": "unofficial", "diff": {"text": text}} for text in texts]
            }
    path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")
    return path


def sha256(path: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
