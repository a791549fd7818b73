"""Refuse names and docstrings that say nothing: `python .ci/plain_words.py [FOLDER...]`.

A variable called `found` or `each` does not tell what it holds, and a docstring that begins with
"Of" is no sentence. Without a folder the whole package is checked.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKED = ("benchmarks", "edl_horovod")
FILLERS = {
    *("each", "found", "made", "given", "kept", "one", "own", "told"),
    *("its", "there", "theirs", "what", "where"),
}
ARCHAISMS = {"anew", "meanwhile", "alike", "whoever", "nobody", "amid"}
PUBLISHED = {("edl_horovod/job/events.py", "made"), ("edl_horovod/job/state.py", "made")}
"""Fields by file whose names are keys of a published format."""
FEW_WORDS = 6
"""A constructor's docstring of at most so many words only says that something is set."""
PRINTED_FROM = "proto"
"""Generated modules."""


def main() -> int:
    """Print what is wrong, a line for each place; returns the exit code."""
    folders = sys.argv[1:] or CHECKED
    files = sorted(
        file
        for folder in folders
        for file in Path(folder).rglob("*.py")
        if PRINTED_FROM not in file.parts
    )
    complaints = [f"{file}:{line}: {text}" for file in files for line, text in complaints_of(file)]
    print("\n".join(complaints) or f"{len(files)} modules with plain names and docstrings")
    return 1 if complaints else 0


def complaints_of(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the complaint of each place in a module."""
    source = file.read_text()
    for node in ast.walk(ast.parse(source)):
        if (name := _bound_name(node)) in FILLERS and (file.as_posix(), name) not in PUBLISHED:
            yield node.lineno, f"The name {name!r} says nothing: name what it holds."
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            words = (ast.get_docstring(node) or "").split()
            if 0 < len(words) <= FEW_WORDS:
                yield node.lineno, "The constructor's docstring says nothing: leave it out."
        if (docstring := _docstring(node)) is None:
            continue
        if docstring.startswith("Of ") or re.search(r"^ +\w+: Of ", docstring, re.M):
            yield (
                node.lineno,
                "The docstring, or an argument's line, begins with 'Of': say of what.",
            )
        if docstring.startswith(("See base.", "See `base.")):
            yield node.lineno, "The docstring only refers to another one: leave it out."
        yield from ((node.lineno, complaint) for complaint in _archaisms(docstring))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], complaint) for complaint in _archaisms(token.string))


def _bound_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


def _docstring(node: ast.AST) -> str | None:
    """A string that stands alone, as docstrings do."""
    is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    value = node.value.value if is_string else None
    return value if isinstance(value, str) else None


def _archaisms(text: str) -> Iterator[str]:
    for word in sorted(
        ARCHAISMS.intersection(text.lower().replace(".", " ").replace(",", " ").split())
    ):
        yield f"{word!r} is out of use: write it as you would say it."


if __name__ == "__main__":
    sys.exit(main())
