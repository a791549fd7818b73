"""Workers that train nothing: they speak the worker's protocol over real sockets.

What each rank of `form` asks of the rendezvous is what our Horovod asks, in its order: for the ring
and again for its process set, the addresses of the global, the local and the cross group, each
request over a connection of its own. Only the connections between the ranks are left out. The
workers of `change` leave their ring when told and report each ring as formed.
"""

import asyncio
import json
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.side import Numbers, Work
from edl_horovod.coordinator import messages
from edl_horovod.coordinator.messages import Formed, Message, Place
from edl_horovod.coordinator.wire import Channel, new_nonce
from edl_horovod.job import hosts
from edl_horovod.job.lifeline import end_with_parent

ADDRESS_BYTES = 136
"""Length of the address of a pair of ranks, in Gloo's TCP transport."""
PASSES = ("", "_process_set_hash_0")
CONNECTING_AT_ONCE = 100
STEP = 7
"""What all workers of `change` say that they have done."""


def form(work: Work, place: Path, job_dir: str, size: int, slots: int, longest: float) -> Numbers:
    """Be many ranks, so many slots a host, until all have formed the ring of a job."""
    end_with_parent()
    return asyncio.run(_Ring(Path(job_dir), size, slots).form(longest))


def change(
    work: Work, place: Path, job_dir: str, num_workers: int, num_events: int, longest: float
) -> Numbers:
    """Be many workers of a job, and time the way from each change to the last worker's place."""
    end_with_parent()
    return asyncio.run(_Crowd(Path(job_dir), num_workers, longest).time_changes(num_events))


class _Connection:
    """The connection of a worker with the coordinator."""

    def __init__(self, job_dir: Path) -> None:
        saved = json.loads((job_dir / "coordinator.json").read_text())
        self._address = (saved["address"], saved["port"])
        self._secret = (job_dir / "secret").read_bytes()
        self.generation = 0

    async def open(self, host: str, slot: int, worker: str, step: int) -> None:
        """Call, and say that the worker is warm."""
        self._reader, self.writer = await asyncio.open_connection(*self._address)
        _, server_nonce = (await self._reader.readline()).decode().split()
        nonce = new_nonce()
        self._channel = Channel(
            self._secret, server_nonce=server_nonce, client_nonce=nonce, is_server=False
        )
        self.writer.write(f"edl {nonce}\n".encode())
        never = {"pid": 0, "generation": 0, "formed": 0, "is_ready": True, "is_leaving": False}
        self.send(messages.Hello(worker=worker, host=host, slot=slot, step=step, **never))

    def send(self, message: Message) -> None:
        """Send a message."""
        self.writer.write(self._channel.seal(messages.encode(message)))

    async def receive(self) -> Message | None:
        """The next message that is no ping, which is answered; None at the end."""
        while line := await self._reader.readline():
            message = messages.decode(self._channel.open(line))
            if isinstance(message, Place):
                self.generation = message.generation
            if not isinstance(message, messages.Ping):
                return message
            self.send(
                messages.Pong(generation=self.generation, doing="unwatched", phase="", seconds=0.0)
            )
        return None

    async def answer_pings(self) -> None:
        """Answer pings until the end."""
        while await self.receive():
            pass


class _Ring:
    """Ranks that form a ring once."""

    def __init__(self, job_dir: Path, num_ranks: int, slots: int) -> None:
        self._job_dir = job_dir
        self._num_ranks = num_ranks
        self._slots = slots
        self._all_formed = asyncio.Event()
        self._num_requests = 0
        self._assigned_at: list[float] = []
        self._formed_at: list[float] = []

    async def form(self, seconds: float) -> Numbers:
        """How long it took, None where it was not in time, and the number of requests."""
        ranks = (self._rank(*divmod(number, self._slots)) for number in range(self._num_ranks))
        tasks = [asyncio.create_task(rank) for rank in ranks]
        done, pending = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        took = None if pending else max(self._formed_at) - min(self._assigned_at)
        return {"seconds": took, "num_requests": self._num_requests}

    async def _rank(self, host_number: int, slot: int) -> None:
        """Be warm, get a place, form the ring, say so."""
        host, connection = f"host-{host_number}", _Connection(self._job_dir)
        await connection.open(host, slot, f"{host}:{slot}:0:0", step=-1)
        while not isinstance(message := await connection.receive(), Place):
            assert message is not None, "the coordinator hung up"
        self._assigned_at.append(time.monotonic())
        answers = asyncio.create_task(connection.answer_pings())
        await self._ask_rendezvous(message)
        self._formed_at.append(time.monotonic())
        connection.send(Formed(generation=message.generation))
        await connection.writer.drain()
        if len(self._formed_at) == self._num_ranks:
            self._all_formed.set()
        await self._all_formed.wait()  # One that hangs up before is a lost member.
        answers.cancel()
        connection.writer.close()

    async def _ask_rendezvous(self, place: Place) -> None:
        """The requests of one `hvd.init()`."""
        groups = (
            ("global", place.rank, place.size),
            (f"local_{place.host}", place.local_rank, place.local_size),
            (f"cross_{place.local_rank}", place.cross_rank, place.cross_size),
        )
        for suffix in PASSES:
            for prefix, rank, size in groups:
                others = [other for other in range(size) if other != rank]
                if others:
                    ours = b"".join(_address(rank, other) for other in others)
                    expected = b"".join(_address(other, rank) for other in others)
                    path = f"/{prefix}{suffix}/{rank}/{size}"
                    assert await self._exchange(place, path, ours) == expected, path

    async def _exchange(self, place: Place, path: str, body: bytes) -> bytes:
        """A request to the HTTP store of our Horovod, over a connection of its own."""
        reader, writer = await asyncio.open_connection(
            place.rendezvous_address, place.rendezvous_port
        )
        # As the address that Horovod's client is given makes it; see `ring.world`.
        path = f"/{place.rendezvous_token}:0{path}"
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert status.startswith(b"HTTP/1.1 200"), status
        self._num_requests += 1
        return answer


def _address(rank: int, other: int) -> bytes:
    """Where a rank listens for another one, as long as such an address is."""
    return f"{rank}-{other}".encode().ljust(ADDRESS_BYTES)


class _Crowd:
    """Many workers, and the last generation that they were given places in."""

    def __init__(self, job_dir: Path, num_workers: int, seconds: float) -> None:
        self._job_dir = job_dir
        self._num_workers = num_workers
        self._seconds = seconds
        self._workers: dict[int, tuple[_Connection, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()
        self._size = self._generation = self._num_placed = 0

    async def time_changes(self, num_events: int) -> Numbers:
        """Seconds of each change, by its kind."""
        size, file = self._num_workers, self._job_dir / "hosts"
        every = {_host_name(number): 1 for number in range(size)}
        fewer = {_host_name(number): 1 for number in range(size - 1)}
        times: dict[str, list[float]] = defaultdict(list)

        async def timed(kind: str, num_ranks: int) -> None:
            began, before = time.monotonic(), self._generation
            if kind == "lost":
                connection, task = self._workers[size - 1]
                connection.writer.transport.abort()
                task.cancel()
            elif kind in ("start", "back"):
                await self._connect(range(0 if kind == "start" else size - 1, size))
            else:
                hosts.write(file, fewer if kind == "less" else every)
            times[kind].append(await self._until_placed(num_ranks, before) - began)
            await asyncio.sleep(0.5)  # So that the last of the crowd has said what it formed.

        hosts.write(file, every)
        await timed("start", size)
        for _ in range(num_events):
            await timed("lost", size - 1)
            await timed("back", size)
            await timed("less", size - 1)
            # The pod's next worker is warm before host discovery names its host.
            await self._connect(range(size - 1, size))
            await asyncio.sleep(0.5)
            await timed("more", size)
        return times

    async def _until_placed(self, size: int, after: int) -> float:
        """Wait until a generation after that one has places for so many; returns the moment."""
        async with asyncio.timeout(self._seconds):
            while not (self._generation > after and self._size == self._num_placed == size):
                self._news.clear()
                await self._news.wait()
        return time.monotonic()

    async def _connect(self, numbers: range) -> None:
        """Let workers call, some at a time, and listen from then on."""
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect(number: int) -> None:
            async with gate:
                host, connection = _host_name(number), _Connection(self._job_dir)
                await connection.open(host, 0, f"{host}:0:{time.time_ns()}", step=STEP)
                task = asyncio.create_task(self._listen(connection))
                self._workers[number] = connection, task

        await asyncio.gather(*(connect(number) for number in numbers))

    async def _listen(self, connection: _Connection) -> None:
        while message := await connection.receive():
            if isinstance(message, messages.Change):
                connection.send(
                    messages.Ready(generation=connection.generation, step=STEP, reason="")
                )
            elif isinstance(message, Place):
                if message.generation > self._generation:
                    self._generation, self._size = message.generation, message.size
                    self._num_placed = 0
                self._num_placed += 1
                self._news.set()
                connection.send(Formed(generation=message.generation))
            elif isinstance(message, messages.Stop):
                connection.writer.close()
                return


def _host_name(number: int) -> str:
    """As host discovery calls a worker pod."""
    return f"job-worker-{number}.00000000-0000-4000-8000-{number:012d}"
