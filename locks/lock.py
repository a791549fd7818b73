"""Write the locks: all packages that a set of this folder installs, with their hashes.

    python locks/lock.py          # all of them, as `make lock` does
    python locks/lock.py setup    # one

uv resolves the packages within constraints.txt once for all processors and all Pythons from the
oldest that pyproject.toml allows. Only the public index counts: archives that this machine has from
elsewhere may be other builds of the same version. The one exception is PyTorch for CPUs alone,
which is in PyTorch's own index; the public one has the build for CUDA, with gigabytes of libraries.
TORCH_LINKS says where its archives are, as for `make setup`; those that are there are locked.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SETS = {
    # Installed before the others, some of which are built on the spot.
    "build": ["setuptools", "uv", "wheel"],
    # What Horovod's build needs, wherever edl_horovod is installed.
    "horovod": ["packaging", "patch-ng", "setuptools"],
    # With these go those of the frameworks that are asked for.
    "setup": [".[mpi,demo,dev]"],
    "worker": [".[mpi,remote,s3,gcs,arrow,federated]"],
    "tensorflow": [".[tensorflow]"],
    "torch": [".[torch]"],
    # For tests with TensorFlow, whose files of Keras 2 it writes.
    "keras-2": ["tf_keras"],
    "client": [".[kubernetes,image]"],
    # With `setup`, where a release is made.
    "release": [".[release]"],
    # With `worker`, in images for GPUs: one of the two, because they are of different CUDA.
    "tensorflow-cuda": [".[tensorflow-cuda]"],
    "torch-cuda": [".[torch]"],
}
ALONE = frozenset({"keras-2"})
"""Sets without what they bring along: tf_keras asks for the TensorFlow of another package."""
FILES = {name: HERE / f"{name}.txt" for name in SETS}
FILES["horovod"] = ROOT / "edl_horovod" / "horovod_build" / "packages.txt"
"""Where the lock of each set is; that of Horovod's build is in the package."""
OLDEST_PYTHON = "3.11"
TORCH_LINKS = "https://download.pytorch.org/whl/cpu/torch/"


def lock(name: str) -> str:
    """A lock's text; pip and uv take it by `--require-hashes -r`.

    Raises:
        subprocess.CalledProcessError: uv found no solution, and has said why.
    """
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "-q", "--universal"]
    command += ["--python-version", OLDEST_PYTHON, "-c", "constraints.txt", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "--no-emit-package", "edl-horovod", "-"]
    if name in ALONE:
        command.append("--no-deps")
    if name == "torch":
        command += ["--find-links", os.environ.get("TORCH_LINKS") or TORCH_LINKS]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    requirements = "\n".join([*SETS[name], *([f"{pin('torch')}+cpu"] if name == "torch" else [])])
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=kept,
        input=requirements,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return f"# Made by `make lock`: {' '.join(SETS[name])}\n{run.stdout}"


def pin(name: str) -> str:
    """A line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def main() -> None:
    """Write the locks that are asked for."""
    for name in sys.argv[1:] or SETS:
        FILES[name].write_text(lock(name))


if __name__ == "__main__":
    main()
