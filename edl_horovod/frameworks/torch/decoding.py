"""Processes of a rank that make examples of records, where a thread of Python is too slow for it.

They are forked as the batches are opened, so they have the user's spec as it was loaded. The rank
reads the records and sends them; examples come back as plain bytes, because shared memory is scarce
in pods and would outlive a rank that is killed.
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

from edl_horovod.errors import EdlError, kind_of, of_kind
from edl_horovod.frameworks.torch.structures import map_leaves
from edl_horovod.frameworks.torch.variables import from_numpy, to_numpy
from edl_horovod.frameworks.values import Batch
from edl_horovod.records.source import Records

__all__ = ["Decoders", "Make"]

Make: TypeAlias = Callable[[int, Records], Batch | None]
"""Makes the examples of a step's records; None where they give none."""
_PR_SET_PDEATHSIG = 1


class Decoders:
    """Some processes that do the same; several threads may ask at a time."""

    def __init__(self, make: Make, num_processes: int) -> None:
        """Fork them. To be called by a thread that lives as long as the rank: they end with it.

        Args:
            make: What they do; it raises EdlError.
            num_processes: At least one.
        """
        self._all: list[_Process] = []
        for _ in range(num_processes):
            self._all.append(_Process(make, self._all))
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for each in self._all:
            self._idle.put(each)

    def make(self, step: int, records: Records, *, salt: int) -> Batch | None:
        """Have the examples of a step made.

        Args:
            step: Of the job.
            records: As the source read them.
            salt: Sets the random numbers of this rank's examples apart from those of the others.

        Raises:
            EdlError: That of `make`.
            ChildProcessError: The process was ended.
        """
        process = self._idle.get()
        try:
            return process.make(step, records, salt)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End them."""
        for each in self._all:
            each.close()


class _Process:
    """One of them, seen from the rank."""

    def __init__(self, make: Make, others: Sequence["_Process"]) -> None:
        self._channel, theirs = Pipe()
        rank = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            # Or the end of one's channel would not show while another one lives.
            for each in (self, *others):
                each._channel.close()
            _serve(theirs, make, rank)
        theirs.close()

    def make(self, step: int, records: Records, salt: int) -> Batch | None:
        try:
            self._channel.send_bytes(pickle.dumps((step, records, salt)))
            answer = pickle.loads(self._channel.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise ChildProcessError(
                f"The process {self._pid} of this rank, which makes examples of records, has ended"
                f" at step {step}: out of memory, perhaps."
            ) from error
        if isinstance(answer, Batch):
            return _with(from_numpy, answer)
        if answer is not None:
            raise of_kind(*answer)
        return None

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(channel: Connection, make: Make, rank: int) -> NoReturn:
    """Answer until the rank ends, or closes the channel."""
    try:
        # Also where the user's code never comes to an end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != rank:
            os._exit(1)
        # Told to leave, the rank makes its step first, and needs the examples.
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
    except BaseException:  # The edge of the process.
        traceback.print_exc()
        os._exit(1)


def _answer(make: Make, step: int, records: Records) -> Batch | tuple[str, str] | None:
    """The examples in arrays, or the kind and the text of an error."""
    try:
        batch = make(step, records)
    except EdlError as error:
        return kind_of(error), str(error)
    return None if batch is None else _with(to_numpy, batch)


def _begin_step(seed: int, step: int, salt: int) -> None:
    """Seed what examples are changed at random with, whichever process makes them."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, salt), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % (1 << 32))  # What transforms of users draw from.


def _with(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """The batch with a function applied to each tensor, or array, of it."""
    features, labels, weights = (
        map_leaves(function, part) for part in (batch.features, batch.labels, batch.weights)
    )
    return Batch(features, labels, batch.num_examples, weights)
