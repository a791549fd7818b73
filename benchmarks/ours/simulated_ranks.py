"""Many ranks without Horovod: they speak the worker's and Gloo's protocol over real sockets.

What each of them asks of the rendezvous is what our Horovod asks, in its order: for the ring and
again for its process set, the addresses of the global, the local and the cross group, each request
over a connection of its own. Only the connections between the ranks are left out.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import write_numbers
from edl_horovod.coordinator.wire import Channel, new_nonce
from edl_horovod.job.lifeline import end_with_parent

ADDRESS_BYTES = 136
"""Of one pair of ranks, in Gloo's TCP transport."""
PASSES = ("", "_process_set_hash_0")


class _Counts:
    """What all ranks of this process did."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.all_formed = asyncio.Event()
        self.num_requests = 0
        self.assigned_at: list[float] = []
        self.formed_at: list[float] = []


def main() -> int:
    """Be many ranks until all have formed the ring; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True, help="ranks of a host")
    parser.add_argument("--seconds", type=float, required=True, help="longest forming")
    args = parser.parse_args()
    end_with_parent()
    write_numbers(args.place, asyncio.run(_run(args)))
    return 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    counts = _Counts(args.num_ranks)
    saved = json.loads((args.job_dir / "coordinator.json").read_text())
    secret = (args.job_dir / "secret").read_bytes()
    ranks = [
        _rank((saved["address"], saved["port"]), secret, divmod(number, args.slots), counts)
        for number in range(args.num_ranks)
    ]
    tasks = [asyncio.create_task(rank) for rank in ranks]
    done, pending = await asyncio.wait(tasks, timeout=args.seconds)
    for task in done:
        task.result()
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    seconds = None
    if not pending:
        seconds = max(counts.formed_at) - min(counts.assigned_at)
    return {"seconds": seconds, "num_requests": counts.num_requests}


async def _rank(
    coordinator: tuple[str, int], secret: bytes, where: tuple[int, int], counts: _Counts
) -> None:
    """Be warm, get a place, form the ring, say so."""
    host, slot = f"host-{where[0]}", where[1]
    reader, writer = await asyncio.open_connection(*coordinator)
    _, server_nonce = (await reader.readline()).decode().split()
    nonce = new_nonce()
    channel = Channel(secret, server_nonce=server_nonce, client_nonce=nonce, is_server=False)

    def send(kind: str, **fields: Any) -> None:
        writer.write(channel.seal({"kind": kind, **fields}))

    writer.write(f"edl {nonce}\n".encode())
    send(
        "hello",
        worker=f"{host}:{slot}:0:0",
        host=host,
        slot=slot,
        pid=0,
        generation=0,
        formed=0,
        is_ready=True,
        is_leaving=False,
        step=-1,
    )
    place: dict[str, Any] = {}
    while place.get("kind") != "assign":
        place = channel.open(await reader.readline())
        if place["kind"] == "ping":
            send("pong")
    counts.assigned_at.append(time.monotonic())
    answers = asyncio.create_task(_answer_pings(reader, channel, send))
    await _form(place, counts)
    counts.formed_at.append(time.monotonic())
    send("formed", generation=place["generation"])
    await writer.drain()
    if len(counts.formed_at) == counts.num_ranks:
        counts.all_formed.set()
    await counts.all_formed.wait()  # One that hangs up before is a lost member.
    answers.cancel()
    writer.close()


async def _answer_pings(reader: asyncio.StreamReader, channel: Channel, send: Any) -> None:
    while line := await reader.readline():
        if channel.open(line)["kind"] == "ping":
            send("pong")


async def _form(place: dict[str, Any], counts: _Counts) -> None:
    """The requests of one `hvd.init()`."""
    groups = (
        ("global", place["rank"], place["size"]),
        (f"local_{place['host']}", place["local_rank"], place["local_size"]),
        (f"cross_{place['local_rank']}", place["cross_rank"], place["cross_size"]),
    )
    store = _Store(place, counts)
    for suffix in PASSES:
        for prefix, rank, size in groups:
            others = [other for other in range(size) if other != rank]
            if others:
                ours = b"".join(_address(rank, other) for other in others)
                theirs = b"".join(_address(other, rank) for other in others)
                path = f"/{prefix}{suffix}/{rank}/{size}"
                assert await store.exchange(path, ours) == theirs, path


def _address(rank: int, other: int) -> bytes:
    """Where a rank listens for another one, as long as such an address is."""
    return f"{rank}-{other}".encode().ljust(ADDRESS_BYTES)


class _Store:
    """Our Horovod's HTTP store: one connection a request."""

    def __init__(self, place: dict[str, Any], counts: _Counts) -> None:
        self._where = (place["rendezvous_address"], place["rendezvous_port"])
        # As the address that Horovod's client is given makes it; see `ring.world`.
        self._token = f"/{place['rendezvous_token']}:0"
        self._counts = counts

    async def exchange(self, path: str, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._where)
        head = f"POST {self._token}{path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        status, _, found = answer.partition(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 200"), status
        self._counts.num_requests += 1
        return found


if __name__ == "__main__":
    sys.exit(main())
