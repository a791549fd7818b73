"""`edl setup-horovod`: build Horovod for the frameworks of this environment, and install it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser, fact_lines
from edl_horovod.horovod_build import system, wheel
from edl_horovod.horovod_build.progress import Display
from edl_horovod.horovod_build.recipe import Target, find_target
from edl_horovod.supervisor.processes import signals_held, signals_interrupt

_EXAMPLES = """\
examples:
  edl setup-horovod
  edl setup-horovod --wheel-dir /shared/wheels
  edl setup-horovod --dry-run
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl setup-horovod`."""
    flags = _parser(verb, summary).parse_all(argv)
    system.require_pip()
    target = find_target()
    if flags.dry_run:
        _print_plan(target, flags.wheel_dir)
        return 0
    if not wheel.is_installed(target) or flags.wheel_dir is not None:
        with signals_interrupt():
            path = wheel.provide_wheel(target, flags.wheel_dir, Display(sys.stderr))
        print(f"wheel: {path}")
        if not wheel.is_installed(target):
            with signals_held():  # Half an installation would be worse than to wait for it.
                wheel.install(path)
    print(f"{target}, is installed.")
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[--wheel-dir DIR] [--dry-run] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES)
    text = "folder that wheels are taken from and put into, which machines may share (default: the"
    parser.add_argument("--wheel-dir", metavar="DIR", type=Path, help=f"{text} user's cache)")
    parser.add_dry_run("print what would be done, and stop")
    return parser


def _print_plan(target: Target, wheel_dir: Path | None) -> None:
    """Print what would be installed; what the build lacks is the same error as without the flag."""
    print(target)
    path = wheel.find_wheel(target, wheel_dir)
    if wheel.is_installed(target):
        action = "none, it is installed"
    elif path:
        action = "install the wheel"
    else:
        action = "build the wheel, in some two minutes for each framework on two cores; install it"
    print("\n".join(fact_lines({"action": action, "wheel": str(path or "none")})))
    if not path and not wheel.is_installed(target):
        system.require_tools(target)
