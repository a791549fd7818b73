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

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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


def resolve(name: str) -> dict[str, str]:
    """Names with versions, and the sha256 of each archive, of one set."""
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
            command += ["--find-links", os.environ.get("TORCH_LINKS", TORCH_LINKS)]
        environment = {**kept, "PIP_CONFIG_FILE": os.devnull}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        found = json.loads(report.read_text())["install"]
    return {
        f"{it['metadata']['name']}=={it['metadata']['version']}": it["download_info"][
            "archive_info"
        ]["hashes"]["sha256"]
        for it in found
        if it["metadata"]["name"] != OURS
    }


def lock(name: str, hashes: dict[str, str]) -> str:
    """A lock's text; pip takes it by `--require-hashes -r`."""
    lines = [f"# Made by `make lock`: {' '.join(SETS[name])}"]
    lines += [
        f"{package} --hash=sha256:{hashes[package]}" for package in sorted(hashes, key=str.lower)
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the locks that are asked for."""
    for name in sys.argv[1:] or SETS:
        (HERE / f"{name}.txt").write_text(lock(name, resolve(name)))


if __name__ == "__main__":
    main()
