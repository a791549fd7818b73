"""What must be installed on this machine before a job's processes are started on it."""

import importlib.util
import shutil

from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.supervisor.plan import Command

__all__ = ["require_mpi", "require_worker_packages"]

_BUILD = "python docker/horovod/build_wheel.py --install"
_OF_WORKERS = ("tensorflow", "keras", "horovod")


def require_worker_packages() -> None:
    """Refuse what the workers could not import, each of them with a traceback.

    Raises:
        MissingDependency: TensorFlow, Keras or Horovod is not installed.
    """
    missing = [package for package in _OF_WORKERS if _is_missing(package)]
    if missing:
        raise MissingDependency(
            f"The job's workers need TensorFlow, Keras and Horovod, and {' and '.join(missing)}"
            f" {'is' if len(missing) == 1 else 'are'} not installed. In a clone of edl_horovod,"
            " make setup makes an environment that has all of them in .venv; or for this one,"
            f" {how_to_install('tensorflow,horovod-build')} and then {_BUILD}"
        )


def require_mpi(ring: Command) -> None:
    """Refuse to start a static ring without MPI.

    Args:
        ring: How it is started.

    Raises:
        MissingDependency: `mpirun` or mpi4py is not here.
    """
    if shutil.which(ring.argv[0]) is None or _is_missing("mpi4py"):
        raise MissingDependency(
            "launch=mpi needs mpirun and mpi4py, and one of them is not here. "
            f"Use launch=local, which needs no MPI; or {how_to_install('mpi')} and then {_BUILD}"
        )


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None
