"""What a file of tests needs only when its tests run: importing a framework takes seconds.

Such a file puts the imports, and the models and constants that need them, into blocks `if LATER:`,
which tests/conftest.py runs in the file's module before its first test. A parameter of a test that
needs them is written `later("torch.bfloat16")`.
"""

import ast
import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

LATER = False


class Expression:
    """A parameter that is evaluated in the module of its test, before that runs."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.__name__ = text  # From which pytest makes the name of the case.


later = Expression


@functools.cache
def run_later_blocks(module: ModuleType) -> None:
    """Run the blocks `if LATER:` of a module, in their order."""
    path = Path(module.__file__ or "")
    source = path.read_text(encoding="utf-8")
    if "import LATER" not in source and ".test_" not in source:
        return
    for statement in ast.parse(source).body:
        is_later = isinstance(statement, ast.If) and ast.unparse(statement.test) == "LATER"
        # What it imports from another file of tests may need the blocks of that one.
        for part in statement.body if is_later else [statement]:
            if isinstance(part, ast.ImportFrom) and ".test_" in str(part.module):
                run_later_blocks(importlib.import_module(str(part.module)))
        if is_later:
            exec(compile(ast.Module(statement.body, []), path, "exec"), vars(module))


def evaluate_later(params: dict[str, Any], module: ModuleType) -> None:
    """Replace the expressions among a test's parameters by their values."""
    for name, value in params.items():
        if isinstance(value, Expression):
            params[name] = eval(value.text, vars(module))
