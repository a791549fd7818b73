"""Write the locks: every package that a set of this folder installs, with its archive's hash.

    python locks/lock.py          # all of them, as `make lock` does
    python locks/lock.py setup    # one

pip resolves the packages within constraints.txt and says the hash of each archive that it would
install here. So the locks are for the Python and the machine that this runs on; those in the
repository are for CPython 3.11 on Linux, x86_64. Only the public index counts: archives that this
machine has from elsewhere may be other builds of the same version. The one exception is PyTorch for
CPUs alone, which is in PyTorch's own index; the public one has the build for CUDA, with gigabytes
of libraries. TORCH_LINKS says where its archive is found, as for `make setup`.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SETS = {
    # Installed before the others, some of which are built on the spot.
    "build": ["cffi", "patch-ng", "setuptools", "wheel"],
    # With these go those of the frameworks that are asked for.
    "setup": [".[mpi,demo,dev]"],
    "worker": [".[mpi,remote,s3,gcs,arrow]"],
    "tensorflow": [".[tensorflow]"],
    "torch": [".[torch]"],
    # For tests with TensorFlow, whose files of Keras 2 it writes.
    "keras-2": ["tf_keras"],
    "client": [".[kubernetes,image]"],
    # With `worker`, in images for GPUs: one of the two, because they are of different CUDA.
    "tensorflow-cuda": [".[tensorflow-cuda]"],
    "torch-cuda": [".[torch]"],
}
ALONE = frozenset({"keras-2"})
"""Sets without what they bring along: tf_keras asks for the TensorFlow of another package."""
OURS = "edl_horovod"
TORCH_LINKS = "https://download.pytorch.org/whl/cpu/torch/"


def resolve(name: str) -> tuple[dict[str, str], int]:
    """The packages of a set with each archive's sha256, and the bytes of all archives."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    if "PIP_CERT" in os.environ:
        kept["PIP_CERT"] = os.environ["PIP_CERT"]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command += ["--dry-run", "--ignore-installed", "--report", str(report)]
        command += ["-c", "constraints.txt", *SETS[name]]
        if name in ALONE:
            command.append("--no-deps")
        if name == "torch":
            command += ["--find-links", os.environ.get("TORCH_LINKS") or TORCH_LINKS]
        environment = {**kept, "PIP_CONFIG_FILE": os.devnull}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        installed = json.loads(report.read_text())["install"]
    packages = [it for it in installed if it["metadata"]["name"] != OURS]
    hashes = {
        f"{it['metadata']['name']}=={it['metadata']['version']}": sha256(it["download_info"])
        for it in packages
    }
    return hashes, sum(archive_bytes(it["download_info"]["url"]) for it in packages)


def sha256(download: dict[str, Any]) -> str:
    """The hash of an archive, as its index says it, or of the file in a folder."""
    if hashes := download["archive_info"].get("hashes"):
        return hashes["sha256"]
    with urllib.request.urlopen(download["url"]) as archive:
        return hashlib.file_digest(archive, "sha256").hexdigest()


def archive_bytes(url: str) -> int:
    """The size of an archive, as its server says it."""
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, timeout=60) as response:
        return int(response.headers["Content-Length"])


def lock(name: str, hashes: dict[str, str], num_bytes: int) -> str:
    """A lock's text; pip takes it by `--require-hashes -r`."""
    lines = [f"# Made by `make lock`: {' '.join(SETS[name])}"]
    # The set-up prints this line before it downloads anything.
    lines.append(f"# {len(hashes)} packages, {num_bytes / 1e6:,.0f} MB")
    lines += [
        f"{package} --hash=sha256:{hashes[package]}" for package in sorted(hashes, key=str.lower)
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the locks that are asked for."""
    for name in sys.argv[1:] or SETS:
        (HERE / f"{name}.txt").write_text(lock(name, *resolve(name)))


if __name__ == "__main__":
    main()
