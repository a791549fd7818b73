"""`python -m edl_horovod.models.spec_child`: work on model specs that imports a framework.

Also a user's function that returns a spec runs here: it may build the model.
"""

import importlib
import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edl_horovod.config.frameworks import FRAMEWORKS, model_kinds
from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code
from edl_horovod.models.child_process import answer_parent
from edl_horovod.models.spec_zoo import FileModels, file_model
from edl_horovod.models.zoo import Overrides, load_spec

__all__ = ["main"]


def main() -> int:
    """Do what the `action` of the request says, and answer the parent process with the result."""
    return answer_parent(lambda request: _ACTIONS[request["action"]](request))


def _call(request: dict[str, Any]) -> dict[str, Any]:
    """The spec that a user's function returns."""
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


def _summarize(request: dict[str, Any]) -> dict[str, Any]:
    """A `FileModelSummary` of the section in the request; nothing of the files runs."""
    section = request["section"]
    files = _files_of(model_kinds()[section["name"]].framework)
    return asdict(files.summarize(file_model(section, Path(), is_trusted=False)))


def _write(request: dict[str, Any]) -> dict[str, Any]:
    """A `WrittenModel` of the model of a zoo in the request."""
    framework = importlib.import_module(FRAMEWORKS[request["framework"]].module).FRAMEWORK
    loaded = load_spec(
        request["model_zoo"],
        request["model_def"],
        params=request["params"],
        # The data are no part of a spec, so nothing need read them.
        overrides=Overrides(has_own_dataset=True),
        plain_models=framework.plain_models,
    )
    return asdict(_files_of(request["framework"]).write(loaded, Path(request["folder"])))


def _files_of(framework: str) -> FileModels:
    files: FileModels = importlib.import_module(FRAMEWORKS[framework].file_models)
    return files


_ACTIONS = {"call": _call, "summarize": _summarize, "write": _write}


if __name__ == "__main__":
    sys.exit(main())
