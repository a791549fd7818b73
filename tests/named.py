"""The tests that a page of docs/ names."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def is_test(path, name):
    """Whether a file of tests has one of that name."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    tests = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return name in {test.name for test in tests}
