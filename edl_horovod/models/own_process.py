"""A question to a process of its own, for what imports a framework or runs a user's code.

The command itself stays light, and whatever that code does is gone with its process.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edl_horovod.errors import EdlError, JobFailed, kind_of, of_kind

__all__ = ["answer", "ask"]

_REQUEST, _ANSWER = "request.json", "answer.json"


def ask(module: str, request: Mapping[str, Any]) -> Any:
    """What a module of ours answers, run as `python -m`; what it prints goes to stderr.

    Args:
        module: It calls `answer`.
        request: What JSON can hold.

    Raises:
        EdlError: The error of the process, or that it ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="edl-ask-") as folder:
        Path(folder, _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", module, folder]
        code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
        try:
            found = json.loads(Path(folder, _ANSWER).read_text(encoding="utf-8"))
        except OSError as e:
            raise JobFailed(
                f"A process of this command ended with exit code {code}, without an answer.",
                received=f"python -m {module}",
                hint="What it wrote stands above.",
            ) from e
    if "error" in found:
        raise of_kind(found["error"], found["message"])
    return found["answer"]


def answer(function: Callable[[dict[str, Any]], Any]) -> int:
    """Answer the question of the process that started this one; returns the exit code.

    Args:
        function: Makes the answer, which JSON can hold, of the request.
    """
    folder = Path(sys.argv[1])
    request = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    os.dup2(2, 1)
    try:
        text = json.dumps({"answer": function(request)})
    except EdlError as e:
        text = json.dumps({"error": kind_of(e), "message": str(e)})
    (folder / _ANSWER).write_text(text, encoding="utf-8")
    return 0
