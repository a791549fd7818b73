"""Install Horovod as it was released, without our patch, into a folder of its own.

It is built as ours is (`edl_horovod.horovod_build`), for the TensorFlow of this environment. A
side that has the folder first on its `PYTHONPATH` trains with it.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from edl_horovod.horovod_build import __main__ as build_wheel


def main() -> int:
    """Build and install; returns pip's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="that is not there yet")
    folder = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} is there already: remove it first")
    build_wheel.check_tools()
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    # pip's cache would give the wheel of another TensorFlow.
    command += ["--no-cache-dir", "--no-binary=:all:", "--target", str(folder), build_wheel.HOROVOD]
    environment = build_wheel.build_environment()
    # As released it does not compile for today's PyTorch.
    environment.pop("HOROVOD_WITH_PYTORCH", None)
    environment["HOROVOD_WITHOUT_PYTORCH"] = "1"
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
