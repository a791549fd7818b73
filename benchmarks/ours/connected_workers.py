"""A thousand workers that train nothing: they connect, leave their ring when told, take places.

They speak the worker's protocol over sockets of their own, and report a ring as formed without
Horovod: what is timed is the way from a change to the last worker's place.
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
from edl_horovod.job import hosts
from edl_horovod.job.lifeline import end_with_parent

CONNECTING_AT_ONCE = 100
STEP = 7
"""What all say that they have done."""


class _Crowd:
    """All workers, and the last generation that each was given a place in."""

    def __init__(self, args: argparse.Namespace) -> None:
        saved = json.loads((args.job_dir / "coordinator.json").read_text())
        self.address = (saved["address"], saved["port"])
        self.secret = (args.job_dir / "secret").read_bytes()
        self.seconds = args.seconds
        self.workers: dict[int, _Worker] = {}
        self.told = asyncio.Event()
        self.size = 0
        """Ranks of the generation that was dealt last."""
        self.generation = 0
        self.num_placed = 0

    def place(self, message: dict[str, Any]) -> None:
        """One worker got its place."""
        if message["generation"] > self.generation:
            self.generation, self.size, self.num_placed = (
                message["generation"],
                message["size"],
                0,
            )
        self.num_placed += 1
        self.told.set()

    async def until_placed(self, size: int, after: int) -> float:
        """Wait until a generation after that one has places for so many; returns the moment."""
        async with asyncio.timeout(self.seconds):
            while not (self.generation > after and self.size == self.num_placed == size):
                self.told.clear()
                await self.told.wait()
        return time.monotonic()

    async def connect(self, numbers: range) -> None:
        """Let workers of these hosts call, some at a time."""
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                self.workers[number] = worker = _Worker(self, number)
                await worker.connect()

        await asyncio.gather(*(one(number) for number in numbers))


class _Worker:
    """One incarnation, on a host of its own."""

    def __init__(self, crowd: _Crowd, number: int) -> None:
        self._crowd = crowd
        self._number = number
        self._generation = 0

    async def connect(self) -> None:
        """Call, say that it is warm, and listen from then on."""
        reader, self._writer = await asyncio.open_connection(*self._crowd.address)
        _, server_nonce = (await reader.readline()).decode().split()
        nonce = new_nonce()
        self._channel = Channel(
            self._crowd.secret, server_nonce=server_nonce, client_nonce=nonce, is_server=False
        )
        self._writer.write(f"edl {nonce}\n".encode())
        host = host_name(self._number)
        self._send(
            "hello",
            worker=f"{host}:0:{time.time_ns()}",
            host=host,
            slot=0,
            pid=0,
            generation=0,
            formed=0,
            is_ready=True,
            is_leaving=False,
            step=STEP,
        )
        self._task = asyncio.create_task(self._listen(reader))

    def hang_up(self) -> None:
        """As a process that was killed."""
        self._writer.transport.abort()
        self._task.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = self._channel.open(line)
            kind = message["kind"]
            if kind == "ping":
                self._send("pong", generation=self._generation)
            elif kind == "change":
                self._send("ready", generation=self._generation, step=STEP, reason="")
            elif kind == "assign":
                self._generation = message["generation"]
                self._crowd.place(message)
                self._send("formed", generation=self._generation)
            elif kind == "stop":
                self._writer.close()
                return

    def _send(self, kind: str, **fields: Any) -> None:
        self._writer.write(self._channel.seal({"kind": kind, **fields}))


def host_name(number: int) -> str:
    """As host discovery calls a worker pod."""
    return f"job-worker-{number}.00000000-0000-4000-8000-{number:012d}"


def main() -> int:
    """Time the changes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--num-events", type=int, required=True, help="of each kind")
    parser.add_argument("--seconds", type=float, required=True, help="longest change")
    args = parser.parse_args()
    end_with_parent()
    write_numbers(args.place, asyncio.run(_run(args)))
    return 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    crowd, size = _Crowd(args), args.num_workers
    file = args.job_dir / "hosts"
    every = {host_name(number): 1 for number in range(size)}
    fewer = {host_name(number): 1 for number in range(size - 1)}
    found: dict[str, list[float]] = {name: [] for name in ("start", "lost", "back", "less", "more")}

    async def timed(kind: str, num_ranks: int) -> None:
        began, before = time.monotonic(), crowd.generation
        if kind == "lost":
            crowd.workers[size - 1].hang_up()
        elif kind in ("start", "back"):
            await crowd.connect(range(size) if kind == "start" else range(size - 1, size))
        else:
            hosts.write(file, fewer if kind == "less" else every)
        found[kind].append(await crowd.until_placed(num_ranks, before) - began)
        await asyncio.sleep(0.5)  # So that the last of the crowd has said what it formed.

    hosts.write(file, every)
    await timed("start", size)
    for _ in range(args.num_events):
        await timed("lost", size - 1)
        await timed("back", size)
        await timed("less", size - 1)
        # The pod's next worker is warm before host discovery names its host.
        await crowd.connect(range(size - 1, size))
        await asyncio.sleep(0.5)
        await timed("more", size)
    return found


if __name__ == "__main__":
    sys.exit(main())
