"""Processes of a rank that make examples from records, for when a Python thread is too slow.

They are forked when the batches are created, so they inherit the user's loaded spec. The rank reads
the records and sends them to a process, which returns the examples as plain bytes: shared memory is
scarce in pods and would outlive a rank that is killed.
"""

import contextlib
import ctypes
import hashlib
import os
import pickle
import queue
import random
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from edl_horovod.errors import EdlError, error_kind, error_of_kind
from edl_horovod.frameworks.torch.structures import map_leaves
from edl_horovod.frameworks.torch.variables import from_numpy, to_numpy
from edl_horovod.frameworks.values import Batch
from edl_horovod.records.source import Records

__all__ = ["Decoders", "Make"]

Make: TypeAlias = Callable[[int, Records], Batch | None]
"""Makes a batch from a step number and the step's records; None if they have no examples."""
_PR_SET_PDEATHSIG = 1


class Decoders:
    """A pool of such processes; thread-safe."""

    def __init__(self, make: Make, num_processes: int) -> None:
        """Fork the processes. The calling thread must live as long as the rank: they end with it.

        Args:
            make: The function that the processes run; it may raise EdlError.
            num_processes: At least one.
        """
        self._processes: list[_Process] = []
        for _ in range(num_processes):
            self._processes.append(_Process(make, self._processes))
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def make(self, step: int, records: Records, *, salt: int) -> Batch | None:
        """Make the examples of a step in an idle process.

        Args:
            step: Number of the step in the job.
            records: The records as the source returned them.
            salt: Part of the seed of this rank's random numbers, different on each rank.

        Raises:
            EdlError: `make` raised it.
            ChildProcessError: The process has died.
        """
        process = self._idle.get()
        try:
            return process.make(step, records, salt)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()


class _Process:
    """A process of the pool, from the rank's side."""

    def __init__(self, make: Make, others: Sequence["_Process"]) -> None:
        self._channel, child_channel = Pipe()
        rank = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            # An inherited copy of a channel would keep it open after the rank has closed it.
            for process in (self, *others):
                process._channel.close()
            _serve(child_channel, make, rank)
        child_channel.close()

    def make(self, step: int, records: Records, salt: int) -> Batch | None:
        try:
            self._channel.send_bytes(pickle.dumps((step, records, salt)))
            answer = pickle.loads(self._channel.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise ChildProcessError(
                f"The process {self._pid} of this rank, which makes examples from records, died at"
                f" step {step}. It may have run out of memory."
            ) from error
        if isinstance(answer, Batch):
            return _map_batch(from_numpy, answer)
        if answer is not None:
            raise error_of_kind(*answer)
        return None

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(channel: Connection, make: Make, rank: int) -> NoReturn:
    """Answer requests until the rank ends or closes the channel."""
    try:
        # The kernel kills this process with its parent, even if the user's code never returns.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != rank:
            os._exit(1)
        # A rank that is asked to leave finishes its step first, for which it needs the examples.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        torch.set_num_threads(1)
        seed = torch.initial_seed() % (1 << 63)
        while True:
            step, records, salt = pickle.loads(channel.recv_bytes())
            _begin_step(seed, step, salt)
            channel.send_bytes(pickle.dumps(_answer(make, step, records)))
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException:  # The outermost frame of this process.
        traceback.print_exc()
        os._exit(1)


def _answer(make: Make, step: int, records: Records) -> Batch | tuple[str, str] | None:
    """Return the examples as arrays, or the kind and the text of an error."""
    try:
        batch = make(step, records)
    except EdlError as error:
        return error_kind(error), str(error)
    return None if batch is None else _map_batch(to_numpy, batch)


def _begin_step(seed: int, step: int, salt: int) -> None:
    """Seed the random numbers of a step, so that they do not depend on the process."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, salt), digest_size=8).digest()
    step_seed = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(step_seed)
    random.seed(step_seed)
    np.random.seed(step_seed % (1 << 32))  # Users' transforms often draw from this generator.


def _map_batch(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Apply a function to each tensor or array of a batch."""
    features, labels, weights = (
        map_leaves(function, part) for part in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, batch.num_examples, weights)
