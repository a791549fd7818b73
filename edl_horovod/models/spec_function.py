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
from edl_horovod.models.own_process import answer

__all__ = ["main"]


def main() -> int:
    """Answer with the spec, as the function returned it."""
    return answer(_spec_of)


def _spec_of(request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:0] = request["folders"]
    name = f"{request['module']}:{request['function']}"
    with user_code(f"Calling {name}", root=Path.cwd()):
        called = getattr(importlib.import_module(request["module"]), request["function"])
        parameters = inspect.signature(called).parameters.values()
        required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
        if len(required) > 1:
            raise UserCodeError(
                f"{name} must be a function of one folder, in which it may save the model, or of"
                " nothing.",
                received=", ".join(required),
            )
        found = called(*([request["work"]] if required else []))
        if not isinstance(found, dict):
            raise UserCodeError(f"{name} must return a dict.", received=type(found).__name__)
        try:
            json.dumps(found)
        except (TypeError, ValueError) as e:
            raise UserCodeError(
                f"{name} must return a dict of text, numbers, lists and dicts: {e}."
            ) from e
    return found


if __name__ == "__main__":
    sys.exit(main())
