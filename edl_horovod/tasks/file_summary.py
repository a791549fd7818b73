"""`python -m edl_horovod.tasks.file_summary`: describe a model in files, and run nothing of it."""

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.model_spec import MODEL_KINDS
from edl_horovod.models.child_process import answer_parent
from edl_horovod.models.file_model import FileModels, file_model

__all__ = ["main"]


def main() -> int:
    """Answer with a `FileModelSummary` of the section in the request, as a dict."""
    return answer_parent(_summary_of)


def _summary_of(request: dict[str, Any]) -> dict[str, Any]:
    section = request["section"]
    entry = FRAMEWORKS[MODEL_KINDS[section["name"]].framework]
    frameworks: FileModels = importlib.import_module(entry.file_models)
    return asdict(frameworks.summarize(file_model(section, Path(), is_trusted=False)))


if __name__ == "__main__":
    sys.exit(main())
