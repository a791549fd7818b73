"""`edl init`: a project to start from."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.config.conf_files import starter_dir
from edl_horovod.errors import OutputError

_EXAMPLES = """\
examples:
  edl init my-project
  edl init my-project --dry-run
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl init`.

    Raises:
        OutputError: The directory holds something.
    """
    flags = _parser(verb, summary).parse_all(argv)
    source, target = starter_dir(), flags.directory
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputError(
            "A project is written into an empty directory, and this one holds something.",
            received={"DIR": target},
            hint="Give the name of a new directory.",
        )
    for file in sorted(source.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            copy = target / file.relative_to(source)
            if not flags.dry_run:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)  # Not its mode: an installation may be read-only.
            print(copy)
    print(f"\ncd {shlex.quote(str(target))}\nedl train --config-dir conf +experiment=first")
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    parser = VerbParser(verb, summary, "DIR [--dry-run] [--debug]", epilog=lambda: _EXAMPLES)
    parser.add_argument("directory", metavar="DIR", type=Path, help="new or empty directory")
    parser.add_dry_run("print what would be written, and stop")
    return parser
