"""Install PyTorch and what it needs, from the first place that has a locked build of it.

    python locks/install_torch.py                         # as `make setup FRAMEWORKS=torch` does
    TORCH_LINKS=folder python locks/install_torch.py      # from a folder or page of your own alone

The build for CPUs (locks/torch.txt) is not on the public index. It is looked for where pip looks
anyway, then on PyTorch's own index. If neither has it, for example behind a company's mirror of the
public index, the public build is taken (locks/torch-cuda.txt): it runs on CPUs, too, but brings the
libraries of CUDA along. Which build is installed is printed before anything large is downloaded.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
CPU, PUBLIC = "torch.txt", "torch-cuda.txt"
PROBE = ["--retries", "1", "--timeout", "15"]
"""A place that does not answer is given up soon: there is another one."""


def pip(lock: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Install what a lock names; pip's messages are captured."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-build-isolation", *options, "-r", str(lock)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def size_of(lock: Path) -> str:
    """The download's size, which `make lock` writes into the lock's first lines."""
    comments = [line for line in lock.read_text().splitlines() if line.startswith("#")]
    return comments[-1].lstrip("# ")


def main(locks: Path = HERE) -> int:
    """Try the places in turn; returns the process' exit code."""
    links = os.environ.get("TORCH_LINKS", "")
    if links:
        places = [(f"TORCH_LINKS={links}", ["--find-links", links])]
    else:
        index = ["--find-links", PYTORCH_INDEX]
        places = [("where pip looks by itself", []), (f"PyTorch's index {PYTORCH_INDEX}", index)]
    for place, options in places:
        run = pip(locks / CPU, *PROBE, *options)
        if run.returncode == 0:
            print(f"PyTorch is its build for CPUs, from {place}.")
            return 0
    if links:
        print(
            f"{run.stderr.strip()}\nPyTorch's build for CPUs is not in the place that TORCH_LINKS "
            f"names, and no other build is taken then. Received: TORCH_LINKS={links}. It must be a "
            f"folder or a page with the archive that {CPU} locks.",
            file=sys.stderr,
        )
        return 1
    print(
        "PyTorch's build for CPUs is neither where pip looks by itself nor on PyTorch's index "
        f"{PYTORCH_INDEX}.\nThe public index's build is taken instead. It runs on CPUs, too, and "
        f"downloads {size_of(locks / PUBLIC)}.\nTORCH_LINKS=FOLDER takes the build for CPUs from a "
        "folder.",
        flush=True,
    )
    run = pip(locks / PUBLIC)
    if run.returncode != 0:
        print(f"{run.stderr.strip()}\nPyTorch could not be installed.", file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE))
