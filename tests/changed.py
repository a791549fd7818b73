"""Name the files of tests of what has changed: `python -m tests.changed [COMMIT]`.

That is what differs from a commit, by default where this branch left its upstream, or the last
commit. Its tests are those that import a changed module, themselves or by helpers of the tests,
those in the place of tests/unit that mirrors it, and changed ones.
"""

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("unit", "component", "kube", "parallel", "integration")
MODULES = re.compile(r"\b(?:edl_horovod|tests|benchmarks)(?:\.\w+)+")
IMPORTS = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)


def main() -> int:
    """Print the files, one a line; returns the exit code."""
    base = sys.argv[1] if len(sys.argv) > 1 else _fork_point()
    paths = tests_of({Path(line) for line in _changed(base)})
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


def tests_of(changed: set[Path]) -> list[Path]:
    """The files of tests of changed files, all relative to the repository."""
    names = {_module_of(path) for path in changed if path.suffix == ".py"}
    mirrored = {
        Path("tests/unit", *path.parts[1:-1], f"test_{path.stem.partition('_')[0]}")
        for path in changed
        if path.parts[0] == "edl_horovod"
    }
    return [path for path in _tests() if _is_of(path, changed, names, mirrored)]


def _is_of(path: Path, changed: set[Path], names: set[str], mirrored: set[Path]) -> bool:
    is_mirrored = any(str(path).startswith(str(start)) for start in mirrored)
    return path in changed or is_mirrored or bool(_needed(path) & names)


@functools.cache
def _needed(path: Path) -> frozenset[str]:
    """The modules that a file imports, and those that it needs by the helpers of the tests."""
    text = (ROOT / path).read_text(encoding="utf-8")
    names = set(MODULES.findall(text))
    for module, imported in IMPORTS.findall(text):
        names |= {f"{module}.{name}" for name in re.findall(r"\w+", imported)} | {module}
    for name in list(names):
        helper = Path(*name.split(".")).with_suffix(".py")
        if name.startswith("tests.") and helper != path and (ROOT / helper).is_file():
            names |= _needed(helper)
    return frozenset(names)


def _tests() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            yield path.relative_to(ROOT)


def _module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _fork_point() -> str:
    upstream = _git("rev-parse", "--verify", "-q", "@{upstream}")
    return _git("merge-base", "HEAD", upstream[0])[0] if upstream else "HEAD"


def _changed(base: str) -> list[str]:
    return _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
