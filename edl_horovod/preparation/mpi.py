"""A pool of the ranks that `mpirun` started, on any number of machines, with `mpi4py.futures`."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from edl_horovod.errors import ConfigError, EdlError, JobFailed, MissingDependency, how_to_install
from edl_horovod.preparation.groups import (
    ENVIRONMENT,
    Group,
    GroupDone,
    GroupSettings,
    OnWork,
    OpenPool,
    prepare_group,
    source_digest,
)

__all__ = ["is_first_rank", "on_all_ranks"]

ResultT = TypeVar("ResultT")
_WAIT_SECONDS = 0.5


def is_first_rank() -> bool:
    """Whether this rank assigns the groups; the other ranks process them.

    Raises:
        MissingDependency: mpi4py or an MPI library is not installed.
        ConfigError: There is no other rank.
    """
    return int(_world().Get_rank()) == 0


def on_all_ranks(lead: Callable[[OpenPool], ResultT]) -> ResultT:
    """Call `lead` on rank 0 with a pool of the other ranks; return its result on every rank.

    Raises:
        EdlError: The error that `lead` raised on rank 0; all ranks raise it.
    """
    from mpi4py.futures import MPICommExecutor

    world = _world()
    outcome: ResultT | EdlError = JobFailed("Rank 0 of prepare failed; see its traceback.")
    if world.Get_rank() != 0:
        os.environ.update(ENVIRONMENT)
    try:
        # Collective: every rank gets here before any rank can fail.
        with MPICommExecutor(world, root=0) as executor:
            if executor is not None:
                num_workers = world.Get_size() - 1
                outcome = lead(
                    lambda settings, num_groups: contextlib.nullcontext(
                        _MpiPool(executor, settings, min(num_workers, num_groups))
                    )
                )
    except EdlError as e:
        outcome = e
    finally:
        # Also after an unexpected error on rank 0, so that no rank waits for ever.
        outcome = world.bcast(outcome, root=0)
    if isinstance(outcome, EdlError):
        raise outcome
    return outcome


class _MpiPool:
    # The executor is untyped: mpi4py does not declare it as a concurrent.futures.Executor.
    def __init__(self, executor: Any, settings: GroupSettings, num_workers: int) -> None:
        self._executor = executor
        self._settings = settings
        self._num_workers = num_workers

    def source(self) -> str:
        settings = self._settings
        loading = self._executor.submit(source_digest, settings.model_zoo, settings.model_def)
        return str(loading.result())

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        running: set[Future[GroupDone]] = set()
        try:
            while True:
                while len(running) < self._num_workers and (group := next(groups, None)):
                    running.add(self._executor.submit(prepare_group, self._settings, group))
                if not running:
                    return
                done, running = wait(running, _WAIT_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                on_work(0, 0)
        finally:
            for future in running:
                future.cancel()


def _world() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise MissingDependency(
            f"launch=mpi needs mpirun and mpi4py, but one of them is missing: {e}.",
            hint=f"Use launch=local; or {how_to_install('mpi')}",
        ) from e
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ConfigError(
            "launch=mpi needs at least two ranks: the first one assigns the work to the others.",
            received="1 rank",
            hint="Start it with mpirun -n 5 edl prepare launch=mpi ... .",
        )
    return MPI.COMM_WORLD
