"""Rings of many ranks on one machine: `hvd.init()` alone, with our rendezvous and with Horovod's.

The ranks are forks of one process that has loaded Horovod, so that their start costs nothing.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue

import horovod.tensorflow as hvd

from benchmarks.run import interleave
from benchmarks.side import Numbers, Work
from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.job.lifeline import end_with_parent

SECONDS = 60
"""The longest forming, and Gloo's time-out."""
ADDRESS = "127.0.0.1"

Server = tuple[str, int]
"""Address and port, as Horovod takes them."""


def form(work: Work, place: Path, size: int, repetitions: int) -> Numbers:
    """Form rings with both servers in turn; seconds of each."""
    # Forked before there is any thread.
    ranks = [_fork(rank, size) for rank in range(size)]
    end_with_parent()

    servers = {"ours": _our_server, "plain": partial(_horovods_server, size)}
    sides = {name: partial(_form, ranks, server) for name, server in servers.items()}
    seconds = interleave(sides, repetitions)
    for rank in ranks:
        rank.close()  # It ends at that.
    return {**seconds}


def _fork(rank: int, size: int) -> Connection:
    commands, receiver = Pipe()
    if os.fork() == 0:
        commands.close()
        try:
            _be_rank(rank, size, receiver)
        finally:
            os._exit(0)
    receiver.close()
    return commands


def _be_rank(rank: int, size: int, commands: Connection) -> None:
    variables = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    variables |= {"CROSS_RANK": 0, "CROSS_SIZE": 1, "HOSTNAME": "localhost", "ELASTIC": 0}
    variables |= {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo"}
    variables["GLOO_TIMEOUT_SECONDS"] = SECONDS
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in variables.items()})
    while True:
        try:
            server: Server | None = commands.recv()
        except EOFError:
            return
        if server is not None:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = server[0]
            os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(server[1])
            hvd.init()
        else:
            hvd.shutdown()
        commands.send("done")


def _form(
    ranks: Sequence[Connection], open_server: Callable[[], AbstractContextManager[Server]]
) -> float:
    with open_server() as server:
        began = time.monotonic()
        _tell_all(ranks, server)
        seconds = time.monotonic() - began
        _tell_all(ranks, None)
    return seconds


def _tell_all(ranks: Sequence[Connection], server: Server | None) -> None:
    for rank in ranks:
        rank.send(server)
    for rank in ranks:
        rank.recv()


@contextmanager
def _our_server() -> Iterator[Server]:
    servers: Queue[Server] = Queue()
    is_over = threading.Event()

    async def serve() -> None:
        async with Rendezvous(ADDRESS, wait_seconds=SECONDS) as rendezvous:
            # As `ring.world` hands it to Horovod: the token goes between port and scope.
            servers.put((f"{ADDRESS}:{rendezvous.port}/{rendezvous.token}", 0))
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield servers.get()
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _horovods_server(num_ranks: int) -> Iterator[Server]:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port: int = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{num_ranks}"), num_ranks))
    try:
        yield ADDRESS, port
    finally:
        server.stop()
