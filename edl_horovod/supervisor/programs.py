"""Where the programs are that come with an environment of Python: mpirun, horovodrun."""

import shutil
import sys
from pathlib import Path

__all__ = ["locate"]


def locate(name: str) -> str:
    """The path of a program: beside the running Python, else on PATH; its bare name if nowhere.

    An environment need not be activated to be used, so its programs need not be on PATH.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name) or name
