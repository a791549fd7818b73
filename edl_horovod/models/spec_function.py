"""`python -m edl_horovod.models.spec_function`: call a user's function that returns a model spec.

Such a function may build the model, and import a framework for it.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code
from edl_horovod.models.child_process import answer_parent

__all__ = ["main"]


def main() -> int:
    """Answer the parent process with the spec that the function returned."""
    return answer_parent(_spec_of)


def _spec_of(request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:0] = request["folders"]
    name = f"{request['module']}:{request['function']}"
    with user_code(f"Calling {name}", root=Path.cwd()):
        function = getattr(importlib.import_module(request["module"]), request["function"])
        parameters = inspect.signature(function).parameters.values()
        required = [
            parameter.name
            for parameter in parameters
            if parameter.default is inspect.Parameter.empty
        ]
        if len(required) > 1:
            raise UserCodeError(
                f"{name} must take one argument, a folder in which it may save the model, or none.",
                received=", ".join(required),
            )
        spec = function(*([request["work"]] if required else []))
        if not isinstance(spec, dict):
            raise UserCodeError(f"{name} must return a dict.", received=type(spec).__name__)
        try:
            json.dumps(spec)
        except (TypeError, ValueError) as e:
            raise UserCodeError(
                f"{name} must return a dict of text, numbers, lists and dicts: {e}."
            ) from e
    return spec


if __name__ == "__main__":
    sys.exit(main())
