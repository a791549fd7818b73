"""`python -m edl_horovod.tasks.spec_writing`: write a model of a zoo as the files of a spec."""

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.base import Framework
from edl_horovod.models.child_process import answer_parent
from edl_horovod.models.file_model import FileModels
from edl_horovod.models.zoo import Overrides, load_spec

__all__ = ["main"]


def main() -> int:
    """Answer with a `WrittenModel` of the model in the request, as a dict."""
    return answer_parent(_written)


def _written(request: dict[str, Any]) -> dict[str, Any]:
    entry = FRAMEWORKS[request["framework"]]
    framework: Framework = importlib.import_module(entry.module).FRAMEWORK
    files: FileModels = importlib.import_module(entry.file_models)
    loaded = load_spec(
        request["model_zoo"],
        request["model_def"],
        params=request["params"],
        # The data are no part of a spec, so nothing need read them.
        overrides=Overrides(has_own_dataset=True),
        plain_models=framework.plain_models,
    )
    return asdict(files.write(loaded, Path(request["folder"])))


if __name__ == "__main__":
    sys.exit(main())
