"""Rings of many ranks on one machine: `hvd.init()` alone, with our rendezvous and with Horovod's.

The ranks are forks of one process that has loaded Horovod, so that their start costs nothing.
"""

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import horovod.tensorflow as hvd

from benchmarks.common import write_numbers
from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.job.lifeline import end_with_parent

SECONDS = 60
"""Longest forming; Gloo's time-out."""
ADDRESS = "127.0.0.1"

Server = tuple[str, int]
"""Address and port, as Horovod takes them."""


def main() -> int:
    """Form rings with both servers in turn; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    args = parser.parse_args()
    # Forked before there is any thread.
    ranks = [_fork(rank, args.num_ranks) for rank in range(args.num_ranks)]
    end_with_parent()
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(args.repetitions):
        with _our_server() as server:
            found["ours"].append(_form(ranks, server))
        with _their_server(args.num_ranks) as server:
            found["theirs"].append(_form(ranks, server))
        print(json.dumps(found), flush=True)
    write_numbers(args.place, found)
    for rank in ranks:
        rank.close()  # It ends at that.
    return 0


def _fork(rank: int, size: int) -> Connection:
    ours, theirs = Pipe()
    if os.fork() == 0:
        ours.close()
        try:
            _be_rank(rank, size, theirs)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _be_rank(rank: int, size: int, orders: Connection) -> None:
    names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in names.items()})
    os.environ.update(
        HOROVOD_CROSS_RANK="0",
        HOROVOD_CROSS_SIZE="1",
        HOROVOD_HOSTNAME="localhost",
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="lo",
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(SECONDS),
        HOROVOD_ELASTIC="0",
    )
    while True:
        try:
            server: Server | None = orders.recv()
        except EOFError:
            return
        if server is not None:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = server[0]
            os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(server[1])
            hvd.init()
        else:
            hvd.shutdown()
        orders.send("done")


def _form(ranks: list[Connection], server: Server) -> float:
    began = time.monotonic()
    _tell_all(ranks, server)
    seconds = time.monotonic() - began
    _tell_all(ranks, None)
    return seconds


def _tell_all(ranks: list[Connection], server: Server | None) -> None:
    for rank in ranks:
        rank.send(server)
    for rank in ranks:
        rank.recv()


@contextmanager
def _our_server() -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()  # type: ignore[arg-type]

    rendezvous = Rendezvous(ADDRESS, wait_seconds=SECONDS)
    call(rendezvous.__aenter__())
    try:
        # As `ring.world` hands it to Horovod: the token goes between port and scope.
        yield f"{ADDRESS}:{rendezvous.port}/{rendezvous.token}", 0
    finally:
        call(rendezvous.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        # As `asyncio.run` ends: the server listens on for a while otherwise.
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()


@contextmanager
def _their_server(num_ranks: int) -> Iterator[Server]:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port: int = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{num_ranks}"), num_ranks))
    try:
        yield ADDRESS, port
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
