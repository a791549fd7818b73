"""The wheel of our Horovod: it is found in a folder, or built once and kept there."""

import contextlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edl_horovod.errors import JobFailed, MissingDependency, OutputError, hint_of
from edl_horovod.files.cache import one_builder, user_cache
from edl_horovod.files.whole_file import write_bytes
from edl_horovod.horovod_build import recipe, system
from edl_horovod.horovod_build.progress import Display
from edl_horovod.horovod_build.recipe import Target

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_PERCENTAGE = re.compile(r"\[\s*(\d+)%\]")
"""How CMake's makefiles say how much is compiled."""
_MARKS = ("error:", "Error:", "CMake Error", "No module named")
_NUM_LAST_LINES = 10
_APPLY = "import sys, patch_ng; sys.exit(not patch_ng.fromfile(sys.argv[1]).apply(1, sys.argv[2]))"


def find_wheel(target: Target, wheel_dir: Path | None) -> Path | None:
    """Find the wheel of a target in a folder of wheels, or else in the user's cache."""
    folders = [*([wheel_dir] if wheel_dir is not None else []), _cache()]
    return next((wheel for folder in folders if (wheel := _wheel_in(folder, target))), None)


def is_installed(target: Target) -> bool:
    """Whether the Horovod in this environment is the one for the target."""
    try:
        metadata = importlib.metadata.distribution("horovod").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return False
    return f"Build: {target.build_tag}" in metadata.splitlines()


def provide_wheel(target: Target, wheel_dir: Path | None, display: Display) -> Path:
    """Find the wheel of a target, or build it; other processes wait for that.

    Args:
        target: The environment that it must fit.
        wheel_dir: A folder of wheels, which many machines may share: everybody can read a new one.
            None for the user's cache.
        display: Shows what is done.

    Returns:
        The wheel's path in that folder. It appears there complete or not at all.

    Raises:
        JobFailed: The build failed.
        MissingDependency: A tool of the build is missing, or Horovod's source cannot be fetched.
        OutputError: The folder has no such wheel and cannot be written.
    """
    folder = _cache() if wheel_dir is None else wheel_dir
    if wheel := _wheel_in(folder, target):
        return wheel
    if wheel_dir is not None:
        with _writing(folder):
            _create_shared(folder)
    lock = folder / f".{target.name}.lock"
    with one_builder([lock], display.say, doing="builds Horovod", gives_up=False):
        if wheel := _wheel_in(folder, target):
            return wheel
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        if wheel := _wheel_in(_cache(), target):
            return _publish(wheel, target, folder)
        system.require_tools(target)
        return _build(target, folder, display)


@contextlib.contextmanager
def one_installer(display: Display) -> Iterator[None]:
    """Let one process at a time install into this environment; others wait."""
    lock = Path(sys.prefix, ".horovod.lock")
    with one_builder([lock], display.say, doing="installs Horovod", gives_up=False):
        yield


def install(wheel: Path) -> None:
    """Install a wheel into this environment.

    Raises:
        JobFailed: pip refused; the message has its last lines.
    """
    # pip would see the version alone: Horovod for other frameworks has the same one.
    command = [*_PIP, "install", "-q", "--no-deps", "--force-reinstall", str(wheel)]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True
    )
    if run.returncode != 0:
        raise JobFailed(
            f"Horovod is built and pip did not install it: {_last_lines(run.stderr)}",
            received={"wheel": wheel},
        )


def _cache() -> Path:
    return user_cache() / "horovod"


def _create_shared(folder: Path) -> None:
    """Create a folder that everybody can read, whatever the umask of its creator."""
    if not folder.exists():
        _create_shared(folder.parent)
        with contextlib.suppress(FileExistsError):  # Another process was faster.
            folder.mkdir()
            folder.chmod(folder.stat().st_mode | 0o755)  # A group keeps what it may do.


def _wheel_in(folder: Path, target: Target) -> Path | None:
    return next(folder.glob(f"{target.name}-*.whl"), None)


def _build(target: Target, folder: Path, display: Display) -> Path:
    # Not in a folder that accounts share, where each would need to write the log of another.
    log = _cache() / f"{target.name}.log"
    with _writing(log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
    display.say(
        f"Building {target}, in some three minutes for each framework on two cores. Log: {log}"
    )
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as name:
        scratch = Path(name)
        packages, wheels = scratch / "packages", scratch / "wheels"
        display.say("Fetching the packages that the build needs, and Horovod's source.")
        # pip leaves its temporary files where it is killed, so they are a part of ours.
        environment = {**recipe.compiler_environment(target), "TMPDIR": name}
        options = ["install", "-q", "--target", str(packages), "--only-binary", ":all:"]
        _fetch(options, recipe.BUILD_PACKAGES, environment)
        # They are only on the path of the build, and not in the user's environment.
        inherited = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = f"{packages}{os.pathsep}{inherited}".rstrip(os.pathsep)
        source = _source(scratch, environment)
        with (source / "setup.cfg").open("a") as settings:
            settings.write(f"\n[bdist_wheel]\nbuild_number = {target.build_tag}\n")
        command = [*_PIP, "wheel", "-v", "--no-deps", "--no-build-isolation", "--use-pep517"]
        command += ["--no-cache-dir", "-w", str(wheels), str(source)]
        _compile(command, environment, log, display)
        wheel = _publish(next(wheels.glob("*.whl")), target, folder)
    log.unlink(missing_ok=True)
    return wheel


def _fetch(options: Sequence[str], requirements: Path, environment: Mapping[str, str]) -> None:
    """Let pip fetch packages whose hashes are known.

    Raises:
        MissingDependency: It could not.
    """
    command = [*_PIP, *options, "--no-deps", "--require-hashes", "-r", str(requirements)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if run.returncode != 0:
        raise MissingDependency(
            f"pip could not fetch what Horovod is built from: {_last_lines(run.stderr)}",
            hint="Check that pip reaches a package index.",
        )


def _source(scratch: Path, environment: Mapping[str, str]) -> Path:
    """Fetch, unpack and patch Horovod's source; returns its folder."""
    requirements = scratch / "horovod.txt"
    requirements.write_text(recipe.REQUIREMENT)
    options = ["download", "-q", "--no-binary", ":all:", "--no-build-isolation", "-d", str(scratch)]
    _fetch(options, requirements, environment)
    with tarfile.open(next(scratch.glob("horovod-*.tar.gz"))) as archive:
        # Debian 12's Python is 3.11.2; `extractall(filter=...)` came with 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(scratch)
    source = scratch / f"horovod-{recipe.VERSION}"
    for patch in recipe.PATCHES:
        command = [sys.executable, "-c", _APPLY, str(patch), str(source)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert run.returncode == 0, f"{patch.name} does not fit: {run.stderr}"
    return source


def _compile(
    command: Sequence[str], environment: Mapping[str, str], log: Path, display: Display
) -> None:
    """Run the build, with its output in the log.

    Raises:
        JobFailed: It failed; the log stays.
    """
    try:
        with (
            _writing(log.parent),
            log.open("w") as stream,
            display.progress("Compiling Horovod") as show,
            _running(command, environment) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                stream.write(line)
                stream.flush()
                if percentage := _PERCENTAGE.search(line):
                    show(int(percentage[1]))
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    if process.returncode != 0:
        text = log.read_text(errors="replace")
        raise JobFailed(
            f"Horovod did not build: {_cause(text)}\nThe last lines of its log:\n"
            f"{_last_lines(text)}",
            received={"log": log},
            hint="The log has all of it.",
        )


@contextlib.contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program with its children; none of them outlives the block."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _publish(wheel: Path, target: Target, folder: Path) -> Path:
    """Copy a wheel, and a text that says what it is for, into a folder."""
    with _writing(folder):
        text = "".join(f"{name}: {fact}\n" for name, fact in target.facts.items())
        # All who share the folder can read them, whatever the umask of their writer.
        write_bytes(folder / f"{target.name}.txt", [text.encode()], mode=0o644)
        write_bytes(folder / wheel.name, [wheel.read_bytes()], mode=0o644)
    return folder / wheel.name


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"A folder for Horovod's wheel or its log cannot be written: {error}.",
            received={"folder": folder},
            hint=hint_of(error),
        ) from error


def _cause(log: str) -> str:
    """The first line of a build log that says what went wrong."""
    lines = (line.strip() for line in log.splitlines())
    return next((line for line in lines if any(mark in line for mark in _MARKS)), "")


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_NUM_LAST_LINES:])
