"""A pool of the ranks that `mpirun` started, on any number of machines: `mpi4py.futures`."""

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
    prepare_group,
    source_digest,
)
from edl_horovod.preparation.pool import OnWork, OpenPool

__all__ = ["is_first_rank", "on_all_ranks"]

ResultT = TypeVar("ResultT")
_WAIT_SECONDS = 0.5


def is_first_rank() -> bool:
    """Whether this rank deals out the groups; the other ranks do them.

    Raises:
        MissingDependency: mpi4py or an MPI library is not installed.
        ConfigError: There is no other rank.
    """
    return int(_world().Get_rank()) == 0


def on_all_ranks(lead: Callable[[OpenPool], ResultT]) -> ResultT:
    """Call `lead` with the pool of the other ranks on rank 0; return its result on every rank.

    Raises:
        EdlError: What `lead` raised on rank 0; the others raise it too.
    """
    from mpi4py.futures import MPICommExecutor

    world = _world()
    outcome: ResultT | EdlError = JobFailed("Rank 0 of prepare failed; its traceback says why.")
    if world.Get_rank() != 0:
        os.environ.update(ENVIRONMENT)
    try:
        # All ranks get here before anything can fail on one of them: entering is collective.
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
        # Even after a bug of ours on rank 0, so that no rank waits for ever.
        outcome = world.bcast(outcome, root=0)
    if isinstance(outcome, EdlError):
        raise outcome
    return outcome


class _MpiPool:
    # mpi4py does not say that it is a concurrent.futures.Executor.
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
                for one in done:
                    yield one.result()
                on_work(0, 0)
        finally:
            for one in running:
                one.cancel()


def _world() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise MissingDependency(
            f"launch=mpi needs mpirun and mpi4py, and one of them is not here: {e}.",
            cure=f"Use launch=local; or {how_to_install('mpi')}",
        ) from e
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ConfigError(
            "launch=mpi needs two ranks or more: the first one deals out the work of the others.",
            received="1 rank",
            cure="Start it as mpirun -n 5 edl prepare launch=mpi ... .",
        )
    return MPI.COMM_WORLD
