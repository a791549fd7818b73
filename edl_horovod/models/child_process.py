"""Call a module in a child process, for work that imports a framework or runs a user's code.

The command itself stays small, and what that code changes ends with the child.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edl_horovod.errors import EdlError, JobFailed, error_kind, error_of_kind

__all__ = ["answer_parent", "call_in_child"]

_REQUEST, _ANSWER = "request.json", "answer.json"


def call_in_child(module: str, request: Mapping[str, Any]) -> Any:
    """Run a module as `python -m` with a request, and return its answer.

    What the module prints goes to stderr.

    Args:
        module: A module that calls `answer_parent`.
        request: Values that JSON can hold.

    Raises:
        EdlError: The child raised this error, or ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="edl-ask-") as folder:
        Path(folder, _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", module, folder]
        code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
        try:
            reply = json.loads(Path(folder, _ANSWER).read_text(encoding="utf-8"))
        except OSError as e:
            raise JobFailed(
                f"A process of this command ended with exit code {code}, without an answer.",
                received=f"python -m {module}",
                hint="See its output above.",
            ) from e
    if "error" in reply:
        raise error_of_kind(reply["error"], reply["message"])
    return reply["answer"]


def answer_parent(function: Callable[[dict[str, Any]], Any]) -> int:
    """Answer the request of the process that started this one; returns the exit code.

    Args:
        function: Computes the answer, which JSON can hold, from the request.
    """
    folder = Path(sys.argv[1])
    request = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    os.dup2(2, 1)
    try:
        text = json.dumps({"answer": function(request)})
    except EdlError as e:
        text = json.dumps({"error": error_kind(e), "message": str(e)})
    (folder / _ANSWER).write_text(text, encoding="utf-8")
    return 0
