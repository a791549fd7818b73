"""`edl setup-horovod`: build Horovod for the frameworks of this environment, and install it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
    plan = _plan(target, flags.wheel_dir)
    if flags.dry_run:
        _print_plan(target, plan)
    else:
        _carry_out(target, plan, Display(sys.stderr))
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[--wheel-dir DIR] [--dry-run] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES)
    text = "folder that wheels are taken from and put into, which machines may share (default: the"
    parser.add_argument("--wheel-dir", metavar="DIR", type=Path, help=f"{text} user's cache)")
    parser.add_dry_run("print what would be done, and stop")
    return parser


@dataclass(frozen=True)
class _Plan:
    """What is to be done."""

    wheel_dir: Path | None
    wheel: Path | None
    """The wheel that exists already."""
    is_installed: bool

    @property
    def needs_wheel(self) -> bool:
        """Whether the wheel has to be there in the end; a folder of wheels gets it in any case."""
        return not self.is_installed or self.wheel_dir is not None

    def __str__(self) -> str:
        steps = []
        if self.needs_wheel and self.wheel is None:
            steps.append("build the wheel, in some three minutes for each framework on two cores")
        elif self.wheel and self.wheel_dir not in (None, self.wheel.parent):
            steps.append("copy the wheel into the folder")
        if not self.is_installed:
            steps.append("install it" if steps else "install the wheel")
        return "; ".join(steps) or "none, it is installed"


def _plan(target: Target, wheel_dir: Path | None) -> _Plan:
    return _Plan(wheel_dir, wheel.find_wheel(target, wheel_dir), wheel.is_installed(target))


def _print_plan(target: Target, plan: _Plan) -> None:
    """Print what would be done; what the build lacks is the same error as without the flag."""
    print(target)
    print("\n".join(fact_lines({"action": str(plan), "wheel": str(plan.wheel or "none")})))
    if plan.needs_wheel and plan.wheel is None:
        system.require_tools(target)


def _carry_out(target: Target, plan: _Plan, display: Display) -> None:
    if plan.needs_wheel:
        with signals_interrupt():
            path = wheel.provide_wheel(target, plan.wheel_dir, display)
            print(f"wheel: {path}")
            with wheel.one_installer(display):
                if not wheel.is_installed(target):  # Another process may have done it.
                    with signals_held():  # Half an installation would be worse than to wait for it.
                        wheel.install(path)
    print(f"{target}, is installed.")
