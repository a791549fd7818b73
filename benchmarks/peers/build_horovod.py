"""Install Horovod as it was released, without our patch, into a folder of its own.

It is built as ours is (`edl_horovod.horovod_build`), for the TensorFlow of this environment. A
side that has the folder first on its `PYTHONPATH` trains with it.
"""

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

from edl_horovod.errors import EdlError
from edl_horovod.horovod_build import recipe, system


def main() -> int:
    """Build and install; returns pip's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="that is not there yet")
    folder = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} is there already: remove it first")
    try:
        target = recipe.find_target()
        if "tensorflow" not in target.frameworks:
            parser.error("TensorFlow is not installed here: make setup FRAMEWORKS=tensorflow")
        # As released it does not compile for today's PyTorch.
        only = {"tensorflow": target.frameworks["tensorflow"]}
        target = dataclasses.replace(target, frameworks=only)
        system.require_tools(target)
        environment = recipe.compiler_environment(target)
    except EdlError as error:
        parser.error(str(error))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    # pip's cache would give the wheel of another TensorFlow.
    command += ["--no-cache-dir", "--no-binary=:all:", "--target", str(folder)]
    command.append(f"horovod=={recipe.VERSION}")
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
