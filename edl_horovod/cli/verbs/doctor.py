"""`edl doctor`: what of this machine and its environment works, and what to do about the rest."""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import edl_horovod
from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cluster import preflight
from edl_horovod.cluster.client import Cluster
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.errors import (
    ConfigError,
    EdlError,
    MissingDependency,
    NoCluster,
    did_you_mean,
    how_to_install,
)
from edl_horovod.image import job as image
from edl_horovod.launch.slurm import ask_slurm
from edl_horovod.supervisor import needs

PYTHONS = ((3, 11), (3, 13))
"""The oldest and the newest Python that the tests are run with."""
LEAST_FREE_BYTES = 1 << 30
LEAST_SHARED_BYTES = 64 << 20
LEAST_OPEN_FILES = 1024
RING_SECONDS = 120
_EXAMPLES = """\
examples:
  edl doctor
  edl doctor ring disk
  edl doctor --json
  edl doctor --context=my-cluster --namespace=team
"""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    level: Literal["OK", "WARN", "FAIL"]
    """FAIL where no job can run, or a check that was asked for fails; WARN where only some jobs
    need what does not work."""
    text: str
    fix: str = ""


class Place(NamedTuple):
    """The cluster to look at; empty for the current context and its namespace."""

    context: str
    namespace: str


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl doctor`; the exit code is that of a missing dependency if a check failed."""
    flags = _parser(verb, summary).parse_all(argv)
    if unknown := [name for name in flags.checks if name not in _CHECKS]:
        raise ConfigError(
            f"There is no check {unknown[0]!r}.{did_you_mean(unknown[0], _CHECKS)}",
            hint=f"Checks: {', '.join(_CHECKS)}.",
        )
    place = Place(flags.context, flags.namespace)
    findings = []
    for name in flags.checks or _CHECKS:
        for finding in _safely(name, place, is_needed=name in (flags.checks or _NEEDED)):
            findings.append(finding)
            if not flags.json:
                text = " ".join(finding.text.split())
                print(f"{finding.level:4}  {finding.check:10}  {text}", flush=True)
                if finding.fix:
                    print(f"{'':18}fix: {finding.fix}", flush=True)
    if flags.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    has_failed = any(finding.level == "FAIL" for finding in findings)
    return MissingDependency.exit_code if has_failed else 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[CHECK ...] [--json] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES)
    text = f"what to look at (default: everything): {', '.join(_CHECKS)}"
    parser.add_argument("checks", metavar="CHECK", nargs="*", help=text)
    parser.add_switch("--json", help="print a list of objects: check, level, text, fix")
    parser.add_place()
    return parser


def _safely(name: str, place: Place, *, is_needed: bool) -> Iterator[Finding]:
    """The findings of a check; an error in it is one, too."""
    level: Literal["WARN", "FAIL"] = "FAIL" if is_needed else "WARN"
    try:
        yield from _CHECKS[name](place)
    except EdlError as error:
        yield Finding(name, level, error.problem, error.hint)
    except Exception as error:
        yield Finding(name, level, f"the check itself failed: {error!r}")


def _python(_place: Place) -> Iterator[Finding]:
    oldest, newest = PYTHONS
    text = f"{platform.python_version()} in {sys.executable}, {platform.platform()}"
    if oldest <= sys.version_info[:2] <= newest:
        yield Finding("python", "OK", text)
        return
    pythons = f"Python {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
    yield Finding("python", "WARN", text, f"Use {pythons}, with which the tests are run.")


def _package(_place: Place) -> Iterator[Finding]:
    folder = Path(edl_horovod.__file__).parent
    yield Finding("package", "OK", f"{edl_horovod.__version__} in {folder}")
    yield Finding("package", "OK", f"settings of {conf_dir()}")


def _frameworks(_place: Place) -> Iterator[Finding]:
    """One line for each framework: what of it is installed, and whether Horovod has its half."""
    errors = {name: _what_is_missing(name) for name in FRAMEWORKS.loaded()}
    for name, error in errors.items():
        if error is None:
            versions = ", ".join(map(_version, (*FRAMEWORKS[name].packages, "horovod")))
            yield Finding("frameworks", "OK", f"{name}: {versions}")
        else:  # One of them is enough.
            level: Literal["WARN", "FAIL"] = "WARN" if None in errors.values() else "FAIL"
            yield Finding("frameworks", level, f"{name}: {error.problem}", error.hint)


def _what_is_missing(framework: str) -> EdlError | None:
    try:
        needs.require_worker_packages(framework)
    except EdlError as error:
        return error
    return None


def _version(package: str) -> str:
    for distribution in metadata.packages_distributions().get(package, [package]):
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return package


def _ring(_place: Place) -> Iterator[Finding]:
    """Two ranks that add their numbers, started by Horovod's own launcher."""
    launcher = _program("horovodrun")
    if launcher is None:
        yield Finding("ring", "FAIL", "There is no horovodrun.", _REBUILD)
        return
    for name in [name for name in FRAMEWORKS.loaded() if _what_is_missing(name) is None]:
        program = [sys.executable, "-m", "edl_horovod.worker.sum_of_ranks", name]
        command = [launcher, "--gloo", "-np", "2", "-H", "localhost:2", *program]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=RING_SECONDS
            )
        except subprocess.TimeoutExpired:
            text = f"{name}: two ranks did not add their numbers within {RING_SECONDS} s"
            yield Finding("ring", "FAIL", text, f"See what {' '.join(command)} prints.")
            continue
        lines = [line.partition("SUM ")[2] for line in run.stdout.splitlines() if "SUM " in line]
        if run.returncode == 0 and lines:
            outcome = json.loads(lines[0])
            yield Finding("ring", "OK", f"{name}: two ranks add up to {outcome['sum']}")
            if outcome["warning"]:
                yield Finding("ring", "WARN", f"{name}: {outcome['warning']}", _REBUILD)
        else:
            words = (run.stderr or run.stdout).strip().splitlines()[-1:] or ["nothing was printed"]
            text = f"{name}: two ranks could not add their numbers: {words[0]}"
            yield Finding("ring", "FAIL", text, f"See what {' '.join(command)} prints.")


_REBUILD = "edl setup-horovod"


def _program(name: str) -> str | None:
    """The path of a program, beside this Python before others."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(name, path=folders)


def _mpi(_place: Place) -> Iterator[Finding]:
    program = _program("mpirun")
    if program is None or metadata.packages_distributions().get("mpi4py") is None:
        text = "mpirun or mpi4py is missing; launch=mpi needs both."
        yield Finding("mpi", "WARN", text, f"To have them, {how_to_install('mpi')}.")
        return
    yield Finding("mpi", "OK", f"{program}, {_version('mpi4py')}")


def _disk(_place: Place) -> Iterator[Finding]:
    places = {"this folder": os.getcwd(), "temporary files": tempfile.gettempdir()}
    for name, folder in places.items():
        free = shutil.disk_usage(folder).free
        text = f"{name}, {folder}: {free / 1e9:.1f} GB free"
        if free >= LEAST_FREE_BYTES:
            yield Finding("disk", "OK", text)
        else:
            yield Finding("disk", "WARN", text, "Free some space, or work in another folder.")
    shared = Path("/dev/shm")
    size = shutil.disk_usage(shared).total if shared.is_dir() else 0
    text = f"shared memory, {shared}: {size / 1e6:,.0f} MB"
    if size >= LEAST_SHARED_BYTES:
        yield Finding("disk", "OK", text)
    else:
        fix = "Give the container more: --shm-size=1g, or a volume with medium: Memory."
        yield Finding("disk", "WARN", text, fix)


def _open_files(_place: Place) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"at most {soft:,}, which may be raised to {hard:,}"
    if soft >= LEAST_OPEN_FILES:
        yield Finding("files", "OK", text)
    else:
        yield Finding("files", "WARN", text, f"ulimit -n {LEAST_OPEN_FILES}")


def _cluster(place: Place) -> Iterator[Finding]:
    try:
        cluster = Cluster.connect(context=place.context, namespace=place.namespace)
    except (NoCluster, MissingDependency) as error:
        if place.context:
            raise
        yield Finding("cluster", "OK", f"none, which only launch=kubernetes needs: {error.problem}")
        return
    with cluster:
        preflight.check_version(cluster)
        text = f"{cluster.server} runs Kubernetes {cluster.server_version()}"
        yield Finding("cluster", "OK", f"{text}, namespace {cluster.namespace}")
        num_jobs = len(cluster.find("MPIJob"))
        yield Finding("cluster", "OK", f"it knows MPIJobs, and has {num_jobs} in this namespace")


def _images(_place: Place) -> Iterator[Finding]:
    try:
        builder = image.connect()
    except MissingDependency as error:
        text = f"{error.problem} Only jobs whose image is built here need one."
        yield Finding("images", "WARN", text, error.hint)
        return
    try:
        version = builder.version()
        yield Finding("images", "OK", f"{builder.base_url} answers, version {version['Version']}")
    finally:
        builder.close()


def _gpu(_place: Place) -> Iterator[Finding]:
    if shutil.which("nvidia-smi") is None:
        yield Finding("gpu", "OK", "none: nvidia-smi is not here")
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    run = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    if run.returncode != 0:
        words = (run.stdout or run.stderr).strip().partition("\n")[0]
        raise MissingDependency(f"nvidia-smi failed: {words}", hint="See what nvidia-smi prints.")
    for line in run.stdout.splitlines():
        yield Finding("gpu", "OK", line)


def _slurm(_place: Place) -> Iterator[Finding]:
    if shutil.which("sinfo") is None:
        yield Finding("slurm", "OK", "none, which only launch=slurm needs: sinfo is not here")
        return
    partitions = ask_slurm("sinfo", "--noheader", "--format=%P %a %D").splitlines()
    yield Finding("slurm", "OK", f"partitions (state, nodes): {'; '.join(partitions)}")


_NEEDED = ("python", "package", "frameworks", "ring")
"""Checks of what every job needs."""
_CHECKS: dict[str, Callable[[Place], Iterator[Finding]]] = {
    "python": _python,
    "package": _package,
    "frameworks": _frameworks,
    "ring": _ring,
    "mpi": _mpi,
    "disk": _disk,
    "files": _open_files,
    "cluster": _cluster,
    "images": _images,
    "gpu": _gpu,
    "slurm": _slurm,
}
