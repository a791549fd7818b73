"""`edl init`: a project to start from."""

import itertools
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.config.conf_files import template_dir
from edl_horovod.errors import ConfigError, EdlError, OutputError, did_you_mean, how_to_install
from edl_horovod.files.output_dir import writing
from edl_horovod.supervisor import needs


@dataclass(frozen=True)
class _Template:
    """One kind of project."""

    summary: str
    frameworks: tuple[str, ...]
    """The frameworks that its models are written in, the first one by default."""
    packages: Mapping[str, str]
    """Other packages that its commands import, with the extras that install them."""


_DATA = {"sklearn": "demo", "pytest": "demo"}
_TEMPLATES = {
    "keras": _Template("A model of your own in Keras, on NumPy arrays.", ("keras",), _DATA),
    "torch": _Template("A model of your own in PyTorch, on the same arrays.", ("torch",), _DATA),
    "table": _Template(
        "Ready models of numbers and classes, on CSV files.", ("keras", "torch"), _DATA
    ),
    "sql": _Template(
        "The same models by statements in SQL, on a database of SQLite.",
        ("keras", "torch"),
        {**_DATA, "sqlalchemy": "sql", "sqlglot": "sql"},
    ),
}
_DEFAULT = "keras"
_NUM_COMMANDS = 2
"""Number of commands of the README that are printed, behind `cd`."""
_EXAMPLES = """\
examples:
  edl init my-project
  edl init my-project --template sql
  edl init my-project --template torch --dry-run
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl init`.

    Raises:
        ConfigError: There is no such template.
        OutputError: The directory holds something, or cannot be written.
    """
    flags = _parser(verb, summary).parse_all(argv)
    if flags.template not in _TEMPLATES:
        raise ConfigError(
            f"There is no template of this name.{did_you_mean(flags.template, _TEMPLATES)}",
            received=f"--template {flags.template}",
            hint=f"Templates: {', '.join(_TEMPLATES)}.",
        )
    source, target = template_dir(flags.template), flags.directory
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputError(
            "A project is written into an empty directory, and this one holds something.",
            received={"DIR": target},
            hint="Give the name of a new directory.",
        )
    files = [
        file.relative_to(source)
        for file in sorted(source.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    if not flags.dry_run:
        _write(source, files, target)
    for file in files:
        print(target / file)
    for note in _notes(_TEMPLATES[flags.template]):
        print(f"note: {note}", file=sys.stderr)
    commands = [f"cd {shlex.quote(str(target))}", *_first_commands(source / "README.md")]
    print("", *commands, sep="\n")
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "DIR [--template NAME] [--dry-run] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=_epilog)
    parser.add_argument("directory", metavar="DIR", type=Path, help="new or empty directory")
    text = f"which project to write (default: {_DEFAULT})"
    parser.add_argument("-t", "--template", metavar="NAME", default=_DEFAULT, help=text)
    parser.add_dry_run("print what would be written, and stop")
    return parser


def _epilog() -> str:
    lines = "".join(f"  {name:6} {template.summary}\n" for name, template in _TEMPLATES.items())
    return (
        f"templates:\n{lines}\n"
        "Each has its data, its own test and an experiment for a cluster; its README.md has the "
        "commands.\nThe data come with scikit-learn, so nothing is downloaded.\n\n"
        f"{_EXAMPLES}"
    )


def _write(source: Path, files: Sequence[Path], target: Path) -> None:
    """Copy the files; all of them appear, or none."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # An existing directory is kept with its mode: it may be the working directory of a shell.
        beside = target if target.exists() else target.parent
        with tempfile.TemporaryDirectory(prefix=".edl-init-", dir=beside) as work:
            project = Path(work, "project")
            for file in files:
                copy = project / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / file, copy)  # An installation's modes may be read-only.
            if beside != target:
                project.rename(target)
                return
            for path in project.iterdir():
                path.rename(target / path.name)


def _notes(template: _Template) -> Iterator[str]:
    """Sentences on what the commands of the project need that is not installed here."""
    missing = {name: _why_missing(name) for name in template.frameworks}
    usable = [name for name, why in missing.items() if not why]
    if first := missing[template.frameworks[0]]:
        yield (
            f"Add framework={usable[0]} to the commands that train. {first}" if usable else first
        )
    for package, extra in template.packages.items():
        if not needs.is_installed(package):
            yield (
                f"The project needs the package {package}, which is not installed."
                f" To have it, {how_to_install(extra)}."
            )


def _why_missing(framework: str) -> str:
    """Why a framework cannot be used here; empty if it can."""
    try:
        needs.require_worker_packages(framework)
    except EdlError as error:
        return str(error)
    return ""


def _first_commands(readme: Path) -> Iterator[str]:
    lines = readme.read_text(encoding="utf-8").splitlines()
    commands = (line.strip() for line in lines if line.startswith("    "))
    return itertools.islice(commands, _NUM_COMMANDS)
