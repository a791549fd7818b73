"""`edl doctor`: what of this machine and its environment works, and what to do about the rest."""

import argparse
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import edl_horovod
from edl_horovod.cli import report
from edl_horovod.cli.arguments import VerbParser
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.errors import ConfigError, EdlError, did_you_mean
from edl_horovod.extensions import Table
from edl_horovod.health import Check, Finding, Programs, Scope
from edl_horovod.image.plan import parse_repository
from edl_horovod.supervisor.processes import signals_interrupt

__all__ = ["CHECKS"]

log = logging.getLogger(__name__)

FAILED = 1
"""The exit code if a check failed."""
RING_SECONDS = 600.0
"""The check itself gives up a ring of one framework long before."""
_EXAMPLES = """\
examples:
  edl doctor
  edl doctor ring disk
  edl doctor --report
  edl doctor cluster rights pods --context=my-cluster --namespace=team
  edl doctor images registry --image-repository=registry.example.com/team/zoo
"""


def _here(function: str, *, seconds: float = 60.0, is_needed: bool = False) -> Check:
    return Check("edl_horovod.supervisor.health", function, seconds, is_needed)


CHECKS: Table[Check] = Table(
    "checks",
    {
        "python": _here("check_python", is_needed=True),
        "package": Check(__name__, "check_package", is_needed=True),
        "versions": _here("check_versions"),
        "frameworks": _here("check_frameworks", is_needed=True),
        "mpi": _here("check_mpi"),
        "disk": _here("check_disk"),
        "files": _here("check_open_files"),
        "gpu": _here("check_gpus"),
        "cluster": Check("edl_horovod.cluster.health", "check_cluster"),
        "rights": Check("edl_horovod.cluster.health", "check_rights"),
        "pods": Check("edl_horovod.cluster.health", "check_pods"),
        "images": Check("edl_horovod.image.health", "check_builder"),
        "registry": Check("edl_horovod.image.health", "check_registry"),
        "slurm": Check("edl_horovod.launch.slurm", "check_slurm", 90.0),
        # The slowest one is last, so that the others are read while it runs.
        "ring": _here("check_ring", seconds=RING_SECONDS, is_needed=True),
    },
)
"""The checks by name, in the order in which their findings are shown."""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl doctor`; the exit code is 1 if a check failed."""
    flags = _parser(verb, summary).parse_all(argv)
    if unknown := [name for name in flags.checks if name not in CHECKS]:
        raise ConfigError(
            f"There is no check {unknown[0]!r}.{did_you_mean(unknown[0], CHECKS)}",
            hint=f"Checks: {', '.join(CHECKS)}.",
        )
    if flags.image_repository:
        parse_repository(flags.image_repository)
    findings = []
    # SIGTERM ends the programs of the checks as Ctrl-C does.
    with signals_interrupt():
        for name, finding in _examine(flags):
            findings.append((name, finding))
            if not (flags.json or flags.report):
                _print_lines(name, finding)
    if flags.json:
        fields = ("level", "text", "fix")
        values = [
            {"check": name, **{field: getattr(finding, field) for field in fields}}
            for name, finding in findings
        ]
        print(json.dumps(values, indent=2))
    if flags.report:
        print(report.markdown(findings), end="")
    return FAILED if any(finding.level == "FAIL" for _, finding in findings) else 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[CHECK ...] [--json | --report] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES)
    text = f"what to look at (default: everything): {', '.join(CHECKS)}"
    parser.add_argument("checks", metavar="CHECK", nargs="*", help=text)
    formats = parser.add_mutually_exclusive_group()
    text = "print a list of objects: check, level, text, fix"
    formats.add_argument("--json", action="store_true", help=text)
    text = "print a block for a report, without names of hosts and users, and without secrets"
    formats.add_argument("--report", action="store_true", help=text)
    text = "also check that images can be pushed to this repository, REGISTRY/PATH"
    parser.add_argument("--image-repository", metavar="REPOSITORY", default="", help=text)
    parser.add_place()
    return parser


def _examine(flags: argparse.Namespace) -> Iterator[tuple[str, Finding]]:
    """Run the checks side by side; yield their findings in the order of the checks."""
    asked_by_flag = ["registry"] if flags.image_repository else []
    wanted = list(dict.fromkeys((*flags.checks, *asked_by_flag)))
    checks = {name: CHECKS[name] for name in wanted} if flags.checks else CHECKS.loaded()
    with closing(Programs()) as programs:
        scope = Scope(
            programs, flags.context, flags.namespace, flags.image_repository, frozenset(wanted)
        )
        examinations = {name: _Examination(check, scope) for name, check in checks.items()}
        for examination in examinations.values():
            examination.start()
        for name, examination in examinations.items():
            is_wanted = checks[name].is_needed or name in wanted
            for finding in examination.findings():
                is_lowered = finding.level == "FAIL" and not is_wanted
                yield name, replace(finding, level="WARN") if is_lowered else finding


class _Examination(threading.Thread):
    """One check that runs; the process does not wait for it at its end."""

    def __init__(self, check: Check, scope: Scope) -> None:
        super().__init__(name=check.function, daemon=True)
        self._check, self._scope = check, scope
        self._deadline = time.monotonic() + check.seconds
        self._findings: list[Finding] = []

    def run(self) -> None:
        try:
            for finding in self._check.findings(self._scope):
                self._findings.append(finding)
        except EdlError as error:
            self._findings.append(Finding("FAIL", error.facts, error.hint))
        except Exception as error:
            log.debug("a check failed", exc_info=True)
            self._findings.append(Finding("FAIL", f"The check itself failed: {error!r}"))

    def findings(self) -> list[Finding]:
        """Wait for the findings, at most until the check's time is over."""
        self.join(max(0.0, self._deadline - time.monotonic()))
        findings = list(self._findings)
        if self.is_alive():
            text = f"There was no answer within {self._check.seconds:g} s."
            findings.append(Finding("FAIL", text, "Try this check alone, later."))
        return findings


def check_package(_scope: Scope) -> Iterator[Finding]:
    """Where this package and its settings are."""
    folder = Path(edl_horovod.__file__).parent
    yield Finding("OK", f"{edl_horovod.__version__} in {folder}")
    yield Finding("OK", f"settings of {conf_dir()}")


def _print_lines(name: str, finding: Finding) -> None:
    print(f"{finding.level:4}  {name:10}  {' '.join(finding.text.split())}", flush=True)
    if finding.fix:
        word = "if needed" if finding.level == "NONE" else "fix"
        print(f"{'':18}{word}: {' '.join(finding.fix.split())}", flush=True)
