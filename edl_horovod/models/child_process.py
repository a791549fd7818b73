"""Call a function in a child process, for work that imports a framework or runs a user's code.

The command itself stays small, and what that code changes ends with the child.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edl_horovod.errors import EdlError, JobFailed, error_kind, error_of_kind

_MODULE = "edl_horovod.models.child_process"
_REQUEST, _ANSWER = "request.json", "answer.json"


def call_in_child(function: Callable[[dict[str, Any]], Any], request: Mapping[str, Any]) -> Any:
    """Call a function of a module in a child process, and return its answer.

    What the function prints goes to stderr.

    Args:
        function: Takes the request, and returns a value that JSON can hold.
        request: Values that JSON can hold.

    Raises:
        EdlError: The function raised this error, or the child ended without an answer.
    """
    name = f"{function.__module__}:{function.__name__}"
    with tempfile.TemporaryDirectory(prefix="edl-ask-") as folder:
        Path(folder, _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", _MODULE, name, folder]
        code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
        try:
            reply = json.loads(Path(folder, _ANSWER).read_text(encoding="utf-8"))
        except OSError as e:
            raise JobFailed(
                f"A process of this command ended with exit code {code}, without an answer.",
                received=name,
                hint="See its output above.",
            ) from e
    if "error" in reply:
        raise error_of_kind(reply["error"], reply["message"])
    return reply["answer"]


def main(name: str, folder: Path) -> None:
    """Call a function, `module:name`, with the request in a folder, and write its answer there."""
    request = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    os.dup2(2, 1)
    module, _, function = name.partition(":")
    try:
        text = json.dumps({"answer": getattr(importlib.import_module(module), function)(request)})
    except EdlError as e:
        text = json.dumps({"error": error_kind(e), "message": str(e)})
    (folder / _ANSWER).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
